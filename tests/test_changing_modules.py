"""Random modules, and random changes of them between calls in random contexts: the partitioned one goes on as eager does."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils._pytree import tree_flatten

from partitioner import partition

D = 6

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: nn.BatchNorm1d(D),
    "dropout": lambda: nn.Dropout(0.3),
    "layer norm": lambda: nn.LayerNorm(D),
    "embedding": lambda: nn.Embedding(8, D, max_norm=1.0),
    "gru": lambda: nn.GRU(D, D, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(D, 2, batch_first=True),
    "sequence": lambda: nn.Sequential(nn.Linear(D, D), nn.ReLU(inplace=True), nn.Linear(D, D)),
    "encoder": lambda: nn.TransformerEncoderLayer(D, 2, 12, batch_first=True),
    "weights": lambda: nn.ParameterList([nn.Parameter(torch.randn(D)) for _ in range(2)]),
    "list": lambda: nn.ModuleList([nn.Linear(D, D) for _ in range(2)]),
    "dict": lambda: nn.ModuleDict({"x": nn.Linear(D, D), "y": nn.LeakyReLU(0.2)}),
}


class Block(nn.Module):
    """One layer of some kind, and everything that a module may have beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.layer = kind, nn.Linear(D, D), LAYERS[kind]()
        self.scale, self.is_scaled, self.names, self.count = 1.0, True, ["a", "b"], 0
        self.config: dict[str, Any] = {"by": 1, "inner": {"value": 2.0}}
        self.more: Any = None
        self.mean = nn.Buffer(torch.zeros(D))
        self.plain = torch.full((D,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        match self.layer:
            case nn.Embedding():
                h = h + self.layer((x.detach()[:, 0].abs() * 3).long().clamp(0, 7))
            case nn.GRU():
                h = self.layer(h[:, None])[0][:, 0]
            case nn.MultiheadAttention():
                h = self.layer(h[:, None], h[:, None], h[:, None])[0][:, 0]
            case nn.TransformerEncoderLayer():
                h = self.layer(h[:, None])[:, 0]
            case nn.ParameterList():
                h = h + sum(self.layer)
            case nn.ModuleList():
                for layer in self.layer:
                    h = layer(h)
            case nn.ModuleDict():
                for name, layer in self.layer.items():
                    h = layer(h) * (2 if name == "x" else 1)
            case _:
                h = self.layer(h)
        h = h * self.scale if self.is_scaled else h
        h = h if self.more is None else h + self.more
        if self.training:
            self.count += 1
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.detach().mean(0).to(self.mean.dtype), alpha=0.1)
        return h + len(self.names) + self.config["by"] * self.config["inner"]["value"] + self.plain + self.mean


class Net(nn.Module):
    """Two blocks that may share weights, and results of several structures."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.left, self.right = (Block(draw.choice(list(LAYERS))) for _ in range(2))
        self.form, self.is_noisy, self.steps = draw.choice(["sum", "dict", "tuple"]), draw.random() < 0.3, 2
        self.shared = self.left.linear if draw.random() < 0.3 else nn.Linear(D, D)
        if draw.random() < 0.3:
            self.right.linear.weight = self.left.linear.weight

    def forward(self, x: Tensor, scale: Any = None, *, mask: Tensor | None = None, flip: bool = False) -> Any:
        u, v = self.left(x), self.right(x)
        u = u + torch.rand_like(u) if self.is_noisy else u
        u = u if scale is None else u * scale
        v = v if mask is None else v.masked_fill(mask[:, None], 0.0)
        for _ in range(self.steps):
            v = torch.tanh(self.shared(v))
        u = u.flip(0) if flip else u
        return {"sum": u + v, "dict": {"u": u, "v": v, "steps": self.steps, "list": [u, None]}, "tuple": (u, (v, v.sum()))}[
            self.form
        ]


def doubled(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return result * 2


def halved(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] * 0.5,)


def tripled(module: nn.Module, inner: Any, outer: Any) -> Any:
    return tuple(None if each is None else each * 3 for each in inner)


def replace_linear(block: Block, seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        block.linear = nn.Linear(D, D, bias=bool(seed % 2))


def weigh(block: Block) -> None:
    if not parametrize.is_parametrized(block.linear):
        parametrizations.weight_norm(block.linear)


def unweigh(block: Block) -> None:
    if parametrize.is_parametrized(block.linear):
        parametrize.remove_parametrizations(block.linear, "weight")


def set_options(block: Block, number: int) -> None:
    """Options of the layers that they read in each call."""
    for layer in block.modules():
        for name, value in {
            "eps": 0.5,
            "momentum": None,
            "p": 0.9,
            "negative_slope": 0.7,
            "max_norm": None,
            "inplace": False,
        }.items():
            if hasattr(layer, name) and number % 2:
                setattr(layer, name, value)


def write(block: Block) -> None:
    with torch.no_grad():
        block.linear.weight.add_(0.1)


def loaded(net: Net, assign: bool) -> None:
    halves = {name: each * 0.5 if each.is_floating_point() else each.clone() for name, each in net.state_dict().items()}
    net.load_state_dict(halves, assign=assign)


Change = Callable[[Net, Block, int], Any]

CHANGES: dict[str, Change] = {
    "a float": lambda net, block, n: setattr(block, "scale", [0.5, 2.0, -0.0, True, 3][n]),
    "a flag": lambda net, block, n: setattr(block, "is_scaled", not block.is_scaled),
    "a list": lambda net, block, n: block.names.append("c"),
    "another list": lambda net, block, n: setattr(block, "names", ("x",) * n),
    "a config": lambda net, block, n: block.config.update(by=n),
    "an inner config": lambda net, block, n: block.config["inner"].update(value=n / 2),
    "another config": lambda net, block, n: setattr(block, "config", {"by": 2, "inner": {"value": n}}),
    "a value or none": lambda net, block, n: setattr(block, "more", [None, 1, 0.5, torch.full((D,), 0.25), None][n]),
    "a count": lambda net, block, n: setattr(net, "steps", n),
    "a form": lambda net, block, n: setattr(net, "form", ["sum", "dict", "tuple", "sum", "dict"][n]),
    "noise": lambda net, block, n: setattr(net, "is_noisy", not net.is_noisy),
    "a mode": lambda net, block, n: net.train(bool(n % 2)),
    "the mode of a part": lambda net, block, n: block.train(bool(n % 2)),
    "a frozen weight": lambda net, block, n: block.linear.weight.requires_grad_(bool(n % 2)),
    "a frozen part": lambda net, block, n: block.requires_grad_(bool(n % 2)),
    "a layer": lambda net, block, n: replace_linear(block, n),
    "a bias": lambda net, block, n: setattr(block.linear, "bias", nn.Parameter(torch.full((D,), 0.1)) if n % 2 else None),
    "data": lambda net, block, n: block.linear.weight.data.mul_(0.5),
    "a weight": lambda net, block, n: write(block),
    "a buffer": lambda net, block, n: setattr(block, "mean", torch.full((D,), 0.3)),
    "what a buffer holds": lambda net, block, n: block.mean.fill_(0.2),
    "a plain tensor": lambda net, block, n: setattr(block, "plain", torch.full((D,), 0.7)),
    "what a plain tensor holds": lambda net, block, n: block.plain.mul_(2),
    "a hook": lambda net, block, n: block.linear.register_forward_hook(doubled),
    "a hook before": lambda net, block, n: block.register_forward_pre_hook(halved),
    "a hook in backward": lambda net, block, n: block.linear.register_full_backward_hook(tripled),
    "no hooks": lambda net, block, n: [hooks.clear() for hooks in (block.linear._forward_hooks, block._forward_pre_hooks)],
    "a parametrization": lambda net, block, n: weigh(block),
    "no parametrization": lambda net, block, n: unweigh(block),
    "options": lambda net, block, n: set_options(block, n),
    "a dtype": lambda net, block, n: net.double() if n % 2 else net.float(),
    "a state": lambda net, block, n: loaded(net, bool(n % 2)),
    "a tie": lambda net, block, n: setattr(net.right.linear, "weight", net.left.linear.weight),
    "a part": lambda net, block, n: setattr(net, "right", net.left),
    "a forward": lambda net, block, n: setattr(
        block.linear, "forward", lambda x, own=block.linear: F.linear(x, own.weight) * 2
    ),
    "no forward": lambda net, block, n: vars(block.linear).pop("forward", None),
}

CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def outcome(net: nn.Module, call: dict[str, Any]) -> tuple[list[Any], dict[str, Tensor]]:
    """What a caller can see of a call and of a backward of all that it gives: facts, and tensors by name."""
    torch.manual_seed(call["seed"])
    dtype = next(net.parameters()).dtype
    x = (
        torch.randn(call["batch"], 2 * D, dtype=dtype)[:, ::2]
        if call["strided"]
        else torch.randn(call["batch"], D, dtype=dtype)
    )
    x.requires_grad_(call["leaf"])
    options = {"scale": call["scale"], "flip": call["flip"]}
    options |= {"mask": torch.arange(call["batch"]) % 2 == 0} if call["mask"] else {}
    net.zero_grad()
    try:
        with CONTEXTS[call["context"]]():
            results, form = tree_flatten(net(x, **options))
        losses = [each.float().square().sum() for each in results if isinstance(each, Tensor) and each.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    except (RuntimeError, ValueError) as error:
        return [type(error), str(error)], {}
    gradients = {f"gradient of {name}": each.grad for name, each in net.named_parameters()} | {"gradient of x": x.grad}
    tensors = {f"result {number}": each.detach() for number, each in enumerate(results) if isinstance(each, Tensor)}
    tensors |= (
        net.state_dict() | {name: each for name, each in gradients.items() if each is not None} | {"drawn": torch.rand(1)}
    )
    facts = [each.requires_grad if isinstance(each, Tensor) else each for each in results]
    return [str(form), facts, net.left.count, net.right.count], tensors


def raised_by(name: str, net: Any, block: Any, number: int) -> str:
    """What is said of a change that cannot be made now, as of a flag of a weight that is computed."""
    try:
        CHANGES[name](net, block, number)
    except RuntimeError as error:
        return str(error)
    return ""


def go_through(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(draw)
    options = draw.choice([{}, {"backward": "lanes"}, {"example_inputs": torch.randn(3, D)}, {"fullgraph": False}])
    parallel = partition(copy.deepcopy(net), ["cpu:0", "cpu:1"], **options)
    told = [net.left.kind, net.right.kind, str(list(options))]
    for _ in range(7):
        for _ in range(draw.randrange(3)):
            name, side, number = draw.choice(list(CHANGES)), draw.choice(["left", "right"]), draw.randrange(5)
            told.append(f"{name} of the {side}, {number}")
            assert len({raised_by(name, each, getattr(each, side), number) for each in (net, parallel)}) == 1, told
        call = {
            "seed": draw.randrange(1000),
            "batch": draw.choice([1, 2, 3, 3, 5]),
            "strided": draw.random() < 0.2,
            "leaf": draw.random() < 0.3,
            "scale": draw.choice([None, None, 2, 0.5, True]),
            "flip": draw.random() < 0.2,
            "mask": draw.random() < 0.2,
            "context": draw.choice(["grad", "grad", "grad", *CONTEXTS]),
        }
        told.append(str(call))
        (facts, tensors), (actual, found) = outcome(net, call), outcome(parallel, call)
        assert facts == actual, told
        tolerance = 5e-2 if call["context"] == "autocast" else 1e-5
        torch.testing.assert_close(found, tensors, rtol=tolerance, atol=tolerance, msg=lambda text: "\n".join([*told, text]))
        if not tensors:
            return  # what an error leaves behind is eager's own


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_changes(seed: int) -> None:
    go_through(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1120, 8))
def test_many_random_changes(start: int) -> None:
    for seed in range(start, start + 8):
        go_through(seed)
