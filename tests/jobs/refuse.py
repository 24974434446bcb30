"""refuse.py OUT: asks for one thing after the other that must be refused, over the two ranks of this job.

Each rank writes OUT/rank<N>.json: what each case raised, or "" for nothing, and how long it took.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time
import warnings
from collections import UserDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jobs.refuse_nets import (
    Averaged,
    Cached,
    Checkpointed,
    Choosing,
    Counted,
    Dropping,
    Echo,
    Gated,
    Hidden,
    Hiding,
    Layers,
    Logged,
    Mean,
    Measured,
    Noted,
    Noting,
    Picking,
    Placed,
    Real,
    Scaled,
    Spread,
    Started,
    Weighed,
    Weight,
    keeping_products,
)
from jobs.touched import HOOKED, TOUCHED, ended
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe

import partitioner.distributed.ranks
from partitioner.distributed import GradScaler, inference, parallelize, save, stages
from partitioner.distributed.run.ties import gradients_summed

DRAW = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(8, 4, generator=DRAW), torch.randn(8, 4, generator=DRAW)
PIPELINE = {"mesh": {"pipeline": 2}, "microbatches": 2, "timeout": 60}
IDS = torch.ones(8, dtype=torch.int64)
DATA = {"mesh": {"data": 2}, "microbatches": 2, "timeout": 60}
HALVES: dict[str, Any] = {"schedule": "interleaved_zero_bubble", "stages_per_rank": 2}
SHARDED: dict[str, Any] = {"mesh": {"data": 2}, "wrap": "fsdp2"}


def ask(
    model: nn.Module | None = None, inputs: Any = X, loss: Callable[..., Tensor] = nn.functional.mse_loss, **spec: Any
) -> Any:
    """`parallelize`, with something else than is right."""
    return parallelize(model or Layers(), inputs, {"distributed": {**PIPELINE, **spec}}, loss)[1]


def of_pairs(output: Tensor, target: Tensor) -> Tensor:
    """Each row is to be like its own target, and unlike other rows."""
    return (output - target).square().mean() + (output @ output.T).triu(1).mean()


class Judged(nn.Module):
    """Computes its loss itself."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.loss = Layers(), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.layers(x), target)


def of_hardest(output: Tensor, target: Tensor) -> Tensor:
    """Of the rows that are furthest off, as in hard example mining."""
    return (output - target).square().mean(1).topk(2)[0].mean()


def later(batch: Any, inputs: Any = X, **spec: Any) -> None:
    """A right step, and then one with another batch."""
    step = ask(inputs=inputs, **spec)
    step((inputs, TARGET))
    step(batch)


def changed(change: Callable[[nn.Module], Any], before: Callable[[nn.Module], Any] = lambda model: None) -> None:
    """A right step, and then one of a part that the user has done something to; before, to the whole model."""
    model = Layers()
    before(model)
    part, step = parallelize(model, X, {"distributed": PIPELINE}, nn.functional.mse_loss)
    step((X, TARGET))
    change(part)
    step((X, TARGET))


def thawed() -> None:
    """All of the first stage is frozen in one step, and trained in the next one, with the gradients that it had."""
    model, spec = nn.Sequential(Layers(), Layers()), {**DATA, "schedule": "interleaved_1f1b", "stages_per_rank": 2}
    part, step = parallelize(model, X, {"distributed": spec}, nn.functional.mse_loss)
    found = []
    for trained in (True, False, True):
        for each in part.get_submodule("0").parameters():
            each.requires_grad_(trained)
        step((X, TARGET))
        found.append([each.grad for each in part.parameters()])
        part.zero_grad()
    assert found[0][0] is not None and found[1][0] is None
    torch.testing.assert_close(found[2], found[0])


def altered(*changes: Callable[[nn.Module], Any], **spec: Any) -> None:
    """Right steps, the model altered between them and not the part."""
    model = Dropping()
    _, step = parallelize(model, X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    step((X, TARGET))
    for change in changes:
        change(model)
        step((X, TARGET))


def told_of(text: str, *changes: Callable[[nn.Module], Any], **spec: Any) -> None:
    """As `altered`; the first rank says so, once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        altered(*changes, **spec)
    assert sum(text in str(each.message) for each in caught) == (dist.get_rank() == 0), [str(each.message) for each in caught]


def read_as_a_whole(**spec: Any) -> None:
    """Before a step nobody is told; after it each rank is, where it trains a part; the plain model cannot be saved then."""
    model = Layers()
    _, step = parallelize(model, X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            copy.deepcopy(model).state_dict()
            model.state_dict()
            model.layers.state_dict()
        said.append(sum("reads the state of the whole" in str(each.message) for each in caught))
        step((X, TARGET))
    assert said == [0, 2 * ("pipeline" in (PIPELINE | spec)["mesh"])], said
    save("nowhere", model) if said[1] else None


def old_optimizer(kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, after: bool = False, **spec: Any) -> None:
    """Made of the model's parameters, before parallelize, or of the part's; they learn, or it is refused."""
    model = Layers()
    optimizer = kind(model.parameters(), lr=0.5)
    part, step = parallelize(model, X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    optimizer = kind(part.parameters(), lr=0.5) if after else optimizer
    before = step((X, TARGET))
    optimizer.step(*([lambda: before] if kind is torch.optim.LBFGS else []))
    assert step((X, TARGET)) < before


def counting(count: Callable[..., Any]) -> None:
    _, step = parallelize(Layers(), X, {"distributed": PIPELINE}, nn.functional.mse_loss, count_fn=count)
    step((X, TARGET))


def scaled(**options: Any) -> None:
    part, step = parallelize(Layers(), X, {"distributed": PIPELINE}, nn.functional.mse_loss)
    scaler = GradScaler(step, **options)
    step((X, TARGET))
    scaler.step(torch.optim.SGD(part.parameters(), lr=0.1))


def ones(model: nn.Module) -> None:
    with torch.no_grad():
        model.layers[0].weight.fill_(1.0)


def no_number() -> None:
    """A gradient of one rank is none: both are told, and both may go on."""
    part, step = parallelize(Layers(), X, {"distributed": PIPELINE}, nn.functional.mse_loss)
    step((X, TARGET))
    given = next(part.parameters()).grad
    given.fill_(float("nan") if dist.get_rank() else 1.0)
    with suppress(RuntimeError):
        step.clip_grad_norm_(1.0, error_if_nonfinite=True)
        raise AssertionError("nobody was told")
    assert given[0].isnan().any() == dist.get_rank(), "changed"
    assert step.clip_grad_norm_(1.0, foreach=False).isnan() and given.isnan().all()


def doubled() -> None:
    """Losses and norms are of the model's precision: what is clipped would else have that of others."""
    model, x, target = Layers().double(), X.double(), TARGET.double()
    whole = copy.deepcopy(model)
    _, step = parallelize(model, x, {"distributed": DATA}, nn.functional.mse_loss)
    loss, expected = step((x, target)), nn.functional.mse_loss(whole(x), target)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(step.clip_grad_norm_(0.01), nn.utils.clip_grad_norm_(whole.parameters(), 0.01))
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def penalised(**spec: Any) -> None:
    """A loss with a penalty; where it may be, its gradient is that of one process."""
    model, x = Layers(), on_one(1, -X, X) if "data" in spec["mesh"] else X

    def loss(of: nn.Module, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target) + sum(each.square().sum() for each in of.parameters())

    _, step = parallelize(model, x, {"distributed": {**PIPELINE, **spec}}, partial(loss, model))
    whole = copy.deepcopy(model)
    step((x, TARGET))
    (sum(loss(whole, whole(each), TARGET) for each in (X, -X)) / 2).backward()
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def replaced(model: nn.Module) -> None:
    for layer in model.layers:
        layer.weight = nn.Parameter(torch.ones(4, 4))


def turned(model: nn.Module) -> nn.Module:
    """Another model, of the same layers."""
    return nn.Sequential(*reversed(model.layers))


def evaluated(
    told: bool, beside: dict[str, Any] | None = None, of: Callable[[nn.Module], nn.Module] = nn.Module.eval, **spec: Any
) -> None:
    """A part for training and one for evaluation; values that they do not share are told of, by the first rank."""
    torch.manual_seed(0)  # weights of which something is learnt
    model = Layers()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        part, step = parallelize(model, X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
        step((X, TARGET))
        torch.optim.SGD(part.parameters(), lr=0.5).step()
        started = copy.deepcopy(part)
        _, forward = inference(of(model), X, {"distributed": PIPELINE | (spec | {"wrap": "ddp"} if beside is None else beside)})
    said = sum("the parts do not share values" in str(each.message) for each in caught)
    assert said == (told and dist.get_rank() == 0), [str(each.message) for each in caught]
    for one, other in zip(part.state_dict().values(), started.state_dict().values(), strict=True):
        assert torch.equal(one, other), "written over"
    before, loss = forward(X), step((X, TARGET))
    torch.optim.SGD(part.parameters(), lr=0.5).step()
    after = forward(X)
    assert loss > 0 and (before is None or torch.equal(before, after) == told), "told of what is not so"


def run_forwards(model: nn.Module, **spec: Any) -> None:
    """What inference gives on the rank of the last stage is what the model gives."""
    found, expected = inference(model.eval(), X, {"distributed": PIPELINE | spec})[1](X), model(X)
    assert (found is None) == (dist.get_rank() == 0)
    torch.testing.assert_close(found if found is not None else expected, expected)


def own_loop() -> None:
    """A schedule and a loop of one's own, over the stages: the gradients are those of one process."""
    model = Layers()
    whole, numbers = copy.deepcopy(model), torch.arange(2)
    wired = stages(model, X, {"distributed": PIPELINE})
    loss = nn.functional.mse_loss
    engine = ScheduleGPipe(wired.stages[0], 2, loss_fn=lambda given, to: loss(given[0], to) / 2, scale_grads=False)
    wired.batches.fill(X, TARGET)
    parameters = dict(wired.held.named_parameters())
    with gradients_summed(wired.ties, wired.ranks, parameters, wired.apart):
        engine.step(*([numbers] if 0 in wired.held.numbers else []), number=numbers, target=TARGET)
    loss(whole(X), TARGET).backward()
    for key, each in wired.held.named_parameters():
        torch.testing.assert_close(each.grad, whole.get_parameter(key).grad)


def given_wholes(**spec: Any) -> None:
    part, _ = parallelize(Layers(), X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    part.load_state_dict(part.state_dict())
    part.load_state_dict(Layers().state_dict())


def in_turn(model: nn.Module, *inputs: Any, **spec: Any) -> None:
    """Steps with batches, of which the first is the example."""
    step = ask(model, inputs[0], **spec)
    for each in inputs:
        step((each, TARGET))


def listed() -> None:
    """A target of lists, arrays and numbers: what has a row for each of the batch's is divided."""
    texts, weights = ["a", "bcd"] * 2 + ["ef"] * 4, np.arange(8.0, dtype=np.float32)
    target: dict[str, Any] = {"to": TARGET, "texts": texts, "weights": weights, "scale": 2.0, "names": ("x", "y")}

    def loss(output: Tensor, to: dict[str, Any]) -> Tensor:
        assert to["names"] == ("x", "y")
        weight = torch.tensor([len(text) for text in to["texts"]]) * torch.from_numpy(to["weights"])
        return to["scale"] * (weight * (output - to["to"]).square().mean(1)).mean()

    model = Layers()
    expected = loss(model(X), target)
    torch.testing.assert_close(ask(model, loss=loss)((X, target)), expected.detach())


def spread(**spec: Any) -> None:
    """Buffers of other values on each rank, that lie otherwise than new ones: all ranks begin with the first one's."""
    with torch.random.fork_rng():
        torch.manual_seed(dist.get_rank())
        part, step = parallelize(Spread(), X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    step((X, TARGET))
    for each in part.buffers():
        found = [torch.empty(each.shape) for _ in range(2)]
        dist.all_gather(found, each.contiguous())
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def transposed() -> nn.Module:
    model = Layers()
    model.layers[1].weight = nn.Parameter(model.layers[1].weight.detach().t())
    return model


def of_instances() -> None:
    """A target of one item for each row, as detectors have: a dict of boxes, of which there are not equally many; an object."""
    boxes = [{"boxes": each.expand(1 + place % 3, 4), "label": torch.tensor(float(place))} for place, each in enumerate(TARGET)]
    target = {"boxes": boxes, "seen": [Hidden(each) for each in TARGET]}

    def loss(output: Tensor, to: dict[str, Any]) -> Tensor:
        pairs = zip(output, to["boxes"], to["seen"], strict=True)
        return torch.stack([(row - each["boxes"] - seen.inside).mean() * each["label"] for row, each, seen in pairs]).mean()

    model = Layers()
    expected = loss(model(X), target)
    torch.testing.assert_close(ask(model, loss=loss)((X, target)), expected.detach())
    torch.testing.assert_close(ask(model, loss=loss)((X, target | {"boxes": tuple(boxes)})), expected.detach())


def without_gradients() -> None:
    step = ask()
    with torch.no_grad():
        step((X, TARGET))


def tuned() -> None:
    """The usual optimizer of what is trained, also where that is nothing."""
    model = Layers()
    for layer in model.layers[:-1]:
        layer.requires_grad_(False)
    part, step = parallelize(model, X, {"distributed": PIPELINE}, nn.functional.mse_loss)
    step((X, TARGET))
    torch.optim.SGD([each for each in part.parameters() if each.requires_grad], lr=0.5).step()


def at_own_rates(every: int = 1, steps: int = 2, **spec: Any) -> None:
    """Each rank with a learning rate of its own, for a step of the optimizer behind every so many."""
    part, step = parallelize(Layers(), X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1 + dist.get_rank())
    for number in range(1, steps + 1):
        step((X, TARGET))
        if number % every == 0:
            optimizer.step()


def drawn(output: Tensor, target: Tensor) -> Tensor:
    """Mixed by a number of each rank's own."""
    return (output - target).square().mean() * np.random.default_rng(dist.get_rank()).random()


def on_meta() -> None:
    step = ask()
    with torch.device("meta"):
        step((X, TARGET))


def with_threads() -> None:
    """Each rank with another number of them, and so with other sums of one batch."""
    x, before = torch.randn(2**18, 4, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    step = ask(inputs=x)
    torch.set_num_threads(1 + 3 * dist.get_rank())
    step((x, x))
    torch.set_num_threads(before)


def under_autocast() -> None:
    step = ask()
    with torch.autocast("cpu", torch.bfloat16):
        step((X, TARGET))


def ends_frozen(model: nn.Module) -> None:
    """A layer of each rank."""
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.startswith(("layers.0", "layers.2")))


def on_one(rank: int, wrong: Any, right: Any) -> Any:
    return wrong if dist.get_rank() == rank else right


UNREAD: list[Callable[[nn.Module], Any]] = [
    lambda model: setattr(model, "epoch", 1),
    lambda model: model.drop.eval() and model.drop.train(),
    lambda model: torch._dynamo.reset(),
]
"""Changes after which a step is right."""

CASES: dict[str, Callable[[], Any]] = {
    "wrong world size": lambda: ask(mesh={"pipeline": 3}, microbatches=3),
    "no section": lambda: parallelize(Layers(), X, {}, nn.functional.mse_loss),
    "unknown schedule": lambda: ask(schedule="2f2b"),
    "too few microbatches": lambda: ask(microbatches=1),
    "one stage for several": lambda: ask(schedule="looped_bfs"),
    "several stages for one": lambda: ask(stages_per_rank=2),
    "zero bubble with ddp": lambda: ask(schedule="interleaved_zero_bubble", stages_per_rank=2, mesh={"data": 2, "pipeline": 1}),
    "does not divide": lambda: ask(inputs=X[:7]),
    "no tensor": lambda: ask(inputs=(3,)),
    "breaks into pieces": lambda: ask(Choosing()),
    "hides a tensor": lambda: ask(Hiding()),
    "returns a weight": lambda: ask(Weight()),
    "counts its calls": lambda: ask(Counted()),
    "writes a global": lambda: ask(Noting()),
    "begins otherwise": lambda: ask(Started()),
    "replaces a buffer": lambda: ask(Averaged()),
    "sizes that depend on data": lambda: ask(Picking(), mesh={"tensor": 2}),
    "too many stages": lambda: ask(nn.Linear(4, 4)),
    "other spec": lambda: ask(microbatches=on_one(1, 4, 2)),
    "other schedule": lambda: ask(schedule=on_one(1, "gpipe", "1f1b")),
    "other model": lambda: ask(on_one(1, nn.Sequential(*Layers().layers), Layers())),
    "other size": lambda: ask(inputs=on_one(1, X[:4], X)),
    "one does not trace": lambda: ask(on_one(1, Choosing(), Layers())),
    "other rows later": lambda: later((X[:6], TARGET[:6])),
    "fewer columns later": lambda: later((X[:, :3], TARGET)),
    "other dtype later": lambda: later((X.double(), TARGET)),
    "other structure later": lambda: later(({"x": X}, TARGET)),
    "no pair later": lambda: later(X),
    "a target for a loss that takes none": lambda: ask(loss=lambda output: output.mean())((X, TARGET)),
    "a target that is none": lambda: ask(**DATA)((X, None)),
    "a loss that takes nothing": lambda: ask(loss=lambda: X.sum()),
    "a count of two": lambda: counting(lambda target, rows: 1),
    "a copied step": lambda: copy.deepcopy(ask()),
    "a pickled forward": lambda: pickle.dumps(inference(Layers().eval(), X, {"distributed": PIPELINE})[1]),
    "a scaler of a part": lambda: GradScaler(ask().part),
    "a scaler of another device": lambda: GradScaler(ask(), device="cuda"),
    "a scaler that shrinks": lambda: GradScaler(ask(), growth_factor=0.5),
    "a scaler of nothing": lambda: GradScaler(ask(), init_scale=0.0),
    "scales of ranks' own": lambda: scaled(init_scale=on_one(1, 4.0, 8.0)),
    "three later": lambda: later((X, TARGET, TARGET)),
    "target of a microbatch's rows": lambda: later((X, TARGET[:4])),
    "a sparse input": lambda: ask(inputs=X.to_sparse()),
    "a sparse target": lambda: later((X, TARGET.to_sparse())),
    "a nested target": lambda: later((X, torch.nested.as_nested_tensor([*TARGET], layout=torch.jagged))),
    "a transposed parameter with fsdp2": lambda: ask(transposed(), **SHARDED),
    "a list that may be either": lambda: later((X, [{"boxes": torch.ones(8, 4)}] * 8)),
    "a target inside of an object": lambda: later((X, Hidden(TARGET))),
    "a target inside of an object in another": lambda: later((X, Hidden([Hidden(TARGET)]))),
    "a target inside of a dict of another kind": lambda: later((X, UserDict(label=TARGET))),
    "on the meta device": on_meta,
    "a norm of all ranks": lambda: ask(nn.Sequential(*Layers().layers, nn.SyncBatchNorm(4))),
    "a model that fails": lambda: ask(nn.Linear(3, 4)),
    "another learning rate": lambda: at_own_rates(**DATA),
    "another learning rate, of every third step": lambda: at_own_rates(3, 5, **DATA),
    "another learning rate of wholes": lambda: at_own_rates(mesh={"tensor": 2}),
    "a loss that draws": lambda: ask(loss=drawn, mesh={"tensor": 2})((X, TARGET)),
    "other imaginary parts": lambda: in_turn(Real(), torch.complex(X, on_one(1, -X, X))),
    "another number in the batch": lambda: in_turn(Scaled(), (X, 3), (X, 4)),
    "another entry that is read": lambda: in_turn(Placed(), *((X, None, None, {"shift": each}) for each in (1.0, 2.0))),
    "a tensor in another place": lambda: in_turn(Placed(), (X, X, None), (X, None, X)),
    "an input that is trained": lambda: in_turn(Layers(), X.clone().requires_grad_()),
    "an input that is made": lambda: in_turn(Layers(), X.clone().requires_grad_() * 2, **DATA),
    "an array of another length": lambda: later((X, np.ones((4, 4)))),
    "a checkpoint of the older kind": lambda: ask(Checkpointed(True), **DATA),
    "a checkpoint of the older kind in halves": lambda: ask(Checkpointed(True), **HALVES),
    "a checkpoint that keeps some in halves": lambda: ask(Checkpointed(False, context_fn=keeping_products), **HALVES),
    "eval mode later": lambda: changed(nn.Module.eval),
    "train mode later": lambda: changed(nn.Module.train, nn.Module.eval),
    "unfrozen later": lambda: changed(lambda part: part.requires_grad_(True), ends_frozen),
    "nothing trained": lambda: ask(Layers().requires_grad_(False))((X, TARGET)),
    "nothing trained later": lambda: changed(lambda part: part.requires_grad_(False)),
    "one layer in eval mode later": lambda: altered(lambda model: model.drop.eval()),
    "all layers but one": lambda: altered(lambda model: (model.eval(), model.layers.train())),
    "in eval mode behind the part": lambda: altered(nn.Module.eval),
    "one layer of the part": lambda: changed(lambda part: [each.eval() for each in part.children()]),
    "another number later": lambda: altered(lambda model: setattr(model, "scale", 2.0)),
    "another parameter later": lambda: altered(replaced),
    "another method later": lambda: altered(lambda model: setattr(model.drop, "forward", torch.relu)),
    "frozen behind fsdp2": lambda: altered(lambda model: model.requires_grad_(False), mesh={"data": 2}, wrap="fsdp2"),
    "autocast later": under_autocast,
    "an optimizer made before, fsdp2": lambda: old_optimizer(mesh={"data": 2}, wrap="fsdp2"),
    "an optimizer made before, tensor": lambda: old_optimizer(mesh={"tensor": 2}),
    "two dtypes with fsdp2": lambda: ask(Gated(), mesh={"data": 2}, wrap="fsdp2"),
    "sparse gradients": lambda: ask(nn.Embedding(9, 4, sparse=True), IDS, mesh={"data": 2}),
    "writes a parameter": lambda: ask(nn.Embedding(9, 4, max_norm=1.0), IDS, mesh={"data": 2}),
    "writes a parameter again": lambda: ask(nn.Embedding(9, 4, max_norm=1.0), IDS, mesh={"tensor": 2}, recompute="stage"),
    "the plain model saved": read_as_a_whole,
    "loss with a layer": lambda: ask(loss=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0), Mean()), **DATA)(X),
    "loss of parameters": lambda: penalised(mesh={"tensor": 2}),
    "an optimizer of matrices": lambda: old_optimizer(torch.optim.Adafactor, after=True, mesh={"tensor": 2}),
    "an optimizer of what is not sharded": lambda: old_optimizer(torch.optim.Rprop, after=True, **SHARDED),
    "a fused optimizer of what is not sharded": lambda: old_optimizer(
        partial(torch.optim.SGD, fused=True), after=True, **SHARDED
    ),
    "wholes for shards": lambda: given_wholes(**SHARDED),
    "wholes for parts": lambda: given_wholes(mesh={"tensor": 2}),
    "an optimizer of the whole model": lambda: old_optimizer(torch.optim.LBFGS, after=True),
    "without gradients": without_gradients,
    "a loss that is a sum by hand": lambda: ask(loss=lambda output, to: (output - to).square().sum(), **DATA)((X, TARGET)),
    "a loss that is a sum": lambda: ask(loss=nn.MSELoss(reduction="sum"), **DATA)((X, TARGET)),
    "a loss of all pairs": lambda: ask(loss=of_pairs, **DATA)((X, TARGET)),
    "a loss of all pairs in a pipeline": lambda: ask(loss=of_pairs)((X, TARGET)),
    "a loss of the hardest rows": lambda: ask(loss=of_hardest, **DATA)((X, TARGET)),
    "a loss weighed by all rows": lambda: ask(
        loss=lambda output, to: ((output - to[0]).square().mean(1) * to[1] / to[1].sum()).sum(), **DATA
    )((X, (TARGET, torch.arange(len(X)) + 1.0))),
    "a model's loss of all pairs": lambda: ask(Judged(of_pairs), (X, TARGET), lambda loss: loss, **DATA)((X, TARGET)),
    "a model's loss that is a sum": lambda: ask(
        Judged(lambda output, to: 0.5 * (output - to).square().sum()), (torch.cat([X, X]),) * 2, lambda loss: loss, **DATA
    )((torch.cat([X, X]),) * 2),
    "a loss that is a sum by a number": lambda: ask(loss=lambda output, to: (output - to).square().sum() / 4, **DATA)(
        (X, TARGET)
    ),
    "a loss of a loop of rows": lambda: ask(
        loss=lambda output, to: sum((a - b).norm() for a, b in zip(output, to, strict=True)), **DATA
    )((X, TARGET)),
    "a model's loss that is a sum by a number": lambda: ask(
        Judged(lambda output, to: 0.01 * (output - to).square().sum()), (X, TARGET), lambda loss: loss, **DATA
    )((X, TARGET)),
    "a model's loss of what is a number": lambda: ask(
        Judged(lambda output, to: (output - to.masked_fill(to > 1, torch.nan)).square().nanmean()),
        (X, TARGET),
        lambda loss: loss,
        **DATA,
    )((X, TARGET)),
    "the root of a mean": lambda: ask(loss=lambda output, to: nn.functional.mse_loss(output, to).sqrt(), **DATA)((X, TARGET)),
    "loss no scalar": lambda: ask(loss=lambda output: output.mean(1), **DATA)(X),
    "loss of complex numbers": lambda: ask(loss=lambda output: output.mean() + 0j, **DATA)(X),
    "loss no tensor": lambda: ask(loss=lambda output: 3.0, **DATA)(X),
    "loss without a gradient": lambda: ask(loss=lambda output: output.detach().mean(), **DATA)(X),
    "no model": lambda: ask("net"),
    "no loss": lambda: ask(loss=None),
    "a class of losses": lambda: ask(loss=nn.MSELoss),
    "a loss of three": lambda: ask(loss=lambda output, target, weight: (output - target).mean() * weight),
    "a loss by keyword": lambda: ask(loss=lambda output, *, target: (output - target).mean()),
}
"""Nothing is sent after the fault, so that the next case finds the connections in order."""

TAKEN: dict[str, Callable[[], Any]] = {
    "a right step": lambda: later((X, TARGET)),
    "frozen later": lambda: changed(ends_frozen),
    "evaluated beside the step": lambda: evaluated(False),
    "evaluated beside a tensor axis": lambda: evaluated(True, mesh={"tensor": 2}),
    "evaluated beside fsdp2": lambda: evaluated(True, mesh={"data": 2}, wrap="fsdp2"),
    "evaluated beside stages in turns": lambda: evaluated(True, {}, schedule="looped_bfs", stages_per_rank=3),
    "evaluated beside stages, by copies": lambda: evaluated(True, {"mesh": {"data": 2}}),
    "evaluated beside stages, as another model": lambda: evaluated(True, of=turned),
    "evaluated beside copies, as another model": lambda: evaluated(False, of=turned, mesh={"data": 2}),
    "a loop of one's own": own_loop,
    "an optimizer made before": old_optimizer,
    "what forward does not read": lambda: altered(*UNREAD),
    "frozen for a while": thawed,
    "frozen behind the part": lambda: altered(ends_frozen, ends_frozen),
    "written behind fsdp2": lambda: told_of("was written since", ones, ones, mesh={"data": 2}, wrap="fsdp2"),
    "copies that part": lambda: told_of("nothing averages the gradients", mesh={"data": 2}, wrap="none"),
    "the plain model read": lambda: read_as_a_whole(mesh={"data": 2}),
    "a penalty": lambda: penalised(mesh={"data": 2}),
    "a norm that is none": no_number,
    "double precision": doubled,
    "the same mode again": lambda: changed(nn.Module.train),
    "an int": lambda: ask(Scaled(), (X, 3))(((X, 3), TARGET)),
    "what forward does not read in a batch": lambda: in_turn(
        Placed(), *((X, None, None, {"shift": 1.0, "id": f"no. {each}", "at": object()}) for each in range(3))
    ),
    "buffers that lie otherwise": lambda: spread(**DATA),
    "buffers that lie otherwise, with fsdp2": lambda: spread(**SHARDED),
    "buffers that lie otherwise, with a tensor axis": lambda: spread(mesh={"tensor": 2}),
    "an input that is trained over copies": lambda: in_turn(Layers(), X.clone().requires_grad_(), **DATA),
    "lists and arrays": listed,
    "lists of dicts and objects": of_instances,
    "another number of threads": with_threads,
    "an object of one microbatch": lambda: ask(
        loss=lambda output, to: (output - to.inside).square().mean(), microbatches=1, schedule="gpipe"
    )((X, Hidden(TARGET))),
    "a loss inside, of one microbatch": lambda: run_forwards(Measured(), microbatches=1, schedule="gpipe"),
    "an attribute that is given once": lambda: [(step := ask(Noted()))((X, TARGET)), step((X, TARGET))],
    "what is logged once": lambda: ask(Logged())((X, TARGET)),
    "what forward leaves elsewhere for a while": lambda: run_forwards(Cached()),
    "a norm in a checkpoint": lambda: in_turn(Checkpointed(False), X, X, **SHARDED),
    "a loss of the pairs of each microbatch": lambda: parallelize(
        Layers(), X, {"distributed": PIPELINE}, of_pairs, count_fn=lambda *_: 1
    )[1]((X, TARGET)),
    "a loss of the hardest columns": lambda: ask(loss=lambda output, to: (output - to).square().topk(2)[0].mean(), **DATA)(
        (X, TARGET)
    ),
    "a loss of all pairs, whole": lambda: ask(loss=of_pairs, microbatches=1, schedule="gpipe")((X, TARGET)),
    "weights of as many tasks as rows": lambda: ask(
        Weighed(), loss=lambda output, to: ((output[0] - to).square() * (-output[1]).exp()).mean() + output[1].sum()
    )((X, TARGET)),
    "a sum that is divided": lambda: ask(loss=lambda output, to: nn.MSELoss(reduction="sum")(output, to) / len(to))(
        (X, TARGET)
    ),
    "a model's sum that is divided": lambda: ask(
        Judged(lambda output, to: (output - to).square().sum() / len(to)), (X, TARGET), lambda loss: loss
    )((X, TARGET)),
    "a pair for a loss without a target": lambda: ask(loss=lambda output: output.mean())(X),
    "what is not finite": lambda: [ask()((X.masked_fill(X > 0, each), TARGET)) for each in (float("nan"), float("-inf"))],
    "an input returned": lambda: ask(Echo(), loss=lambda output: (output[0] - output[1]).square().mean())(X),
    "tuned behind frozen layers": tuned,
}


def outcome(case: Callable[[], Any]) -> dict[str, Any]:
    start = time.monotonic()
    torch.manual_seed(0)  # of random weights, one in fifty learns nothing: behind each relu there is zero
    try:
        case()
    except (Exception, SystemExit) as error:
        return {"raised": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}
    return {"raised": "", "text": "", "seconds": time.monotonic() - start}


if __name__ == "__main__":
    partitioner.distributed.ranks.LEAD = 0.0  # this job does not end at the first error
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    asked = set(json.loads((folder / "cases.json").read_text()))
    found = {name: outcome(case) for name, case in (CASES | TOUCHED | TAKEN | HOOKED).items() if name in asked}
    rank, late = dist.get_rank(), ended()
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()
    found |= {name: outcome(case) for name, case in late.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
