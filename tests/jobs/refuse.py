"""refuse.py OUT: asks for one thing after the other that must be refused, over the two ranks of this job.

Each rank writes OUT/rank<N>.json: what each case raised, or "" for nothing, and how long it took.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import partitioner.distributed.ranks
from partitioner.distributed import inference, parallelize

DRAW = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(8, 4, generator=DRAW), torch.randn(8, 4, generator=DRAW)
PIPELINE = {"mesh": {"pipeline": 2}, "microbatches": 2, "timeout": 60}
DATA = {"mesh": {"data": 2}, "microbatches": 2, "timeout": 60}


class Layers(nn.Module):
    """Three layers, and what a case adds to them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Choosing(Layers):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return super().forward(x)


class Scaled(Layers):
    def forward(self, x: Tensor, scale: int) -> Tensor:
        return super().forward(x) * torch.arange(scale).sum()


class Counted(Layers):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Averaged(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Picking(Layers):
    def forward(self, x: Tensor) -> Tensor:
        (rows,) = torch.where(x[:, 0] > 0)
        return x.index_add(0, rows, super().forward(x[rows]))


class Hidden:
    def __init__(self, inside: Tensor) -> None:
        self.inside = inside


class Hiding(Layers):
    def forward(self, x: Tensor) -> Hidden:
        return Hidden(super().forward(x))


class Weight(Layers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.layers[0].weight


def ask(
    model: nn.Module | None = None, inputs: Any = X, loss: Callable[..., Tensor] = nn.functional.mse_loss, **spec: Any
) -> Any:
    """`parallelize`, with something else than is right."""
    return parallelize(model or Layers(), inputs, {"distributed": {**PIPELINE, **spec}}, loss)[1]


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


def evaluated(told: bool, **spec: Any) -> None:
    """A part for training and one for evaluation; values that they do not share are told of, by the first rank."""
    model = Layers()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        part, step = parallelize(model, X, {"distributed": PIPELINE | spec}, nn.functional.mse_loss)
        _, forward = inference(model.eval(), X, {"distributed": PIPELINE | spec | {"wrap": "ddp"}})
    said = sum("the parts do not share values" in str(each.message) for each in caught)
    assert said == (told and dist.get_rank() == 0), [str(each.message) for each in caught]
    before, loss = forward(X), step((X, TARGET))
    torch.optim.SGD(part.parameters(), lr=0.5).step()
    after = forward(X)
    assert loss > 0 and (before is None or torch.equal(before, after) == told), "told of what is not so"


def without_gradients() -> None:
    step = ask()
    with torch.no_grad():
        step((X, TARGET))


def ends_frozen(model: nn.Module) -> None:
    """A layer of each rank."""
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.startswith(("layers.0", "layers.2")))


def on_one(rank: int, wrong: Any, right: Any) -> Any:
    return wrong if dist.get_rank() == rank else right


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
    "three later": lambda: later((X, TARGET, TARGET)),
    "target of a microbatch's rows": lambda: later((X, TARGET[:4])),
    "eval mode later": lambda: changed(nn.Module.eval),
    "train mode later": lambda: changed(nn.Module.train, nn.Module.eval),
    "unfrozen later": lambda: changed(lambda part: part.requires_grad_(True), ends_frozen),
    "without gradients": without_gradients,
    "loss no scalar": lambda: ask(loss=lambda output: output.mean(1), **DATA)(X),
    "loss no tensor": lambda: ask(loss=lambda output: 3.0, **DATA)(X),
}
"""Nothing is sent after the fault, so that the next case finds the connections in order."""

TAKEN: dict[str, Callable[[], Any]] = {
    "a right step": lambda: later((X, TARGET)),
    "frozen later": lambda: changed(ends_frozen),
    "evaluated beside the step": lambda: evaluated(False),
    "evaluated beside a tensor axis": lambda: evaluated(True, mesh={"tensor": 2}),
    "evaluated beside fsdp2": lambda: evaluated(True, mesh={"data": 2}, wrap="fsdp2"),
    "the same mode again": lambda: changed(nn.Module.train),
    "an int": lambda: ask(Scaled(), (X, 3))(((X, 3), TARGET)),
    "a pair for a loss without a target": lambda: ask(loss=lambda output: output.mean())(X),
}


def outcome(case: Callable[[], Any]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        case()
    except (Exception, SystemExit) as error:
        return {"raised": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}
    return {"raised": "", "text": "", "seconds": time.monotonic() - start}


if __name__ == "__main__":
    partitioner.distributed.ranks.LEAD = 0.0  # this job does not end at the first error
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    found = {name: outcome(case) for name, case in (CASES | TAKEN).items()}
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()
