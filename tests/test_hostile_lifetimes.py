"""Programs of two mechanisms at once, and of a module's whole life: what trains, is saved, traced by others, and trained on.

Each is judged as those of `hostile` are: it does what the plain model does. On several devices it may be refused, and then
nothing has changed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hostile.judge import EQUAL, REFUSED, Change, Variant, judge
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from pretend import pretending, spread
from torch import nn

from partitioner import TraceError

TWO = {"lazy:0": 1, "lazy:1": 1}

LIVES: dict[str, Program] = {}

life = kept_in(LIVES)

pytestmark = pytest.mark.usefixtures("scattering")


def verdict_of(program: Program, example: bool = True, made: Change | None = None) -> str:
    verdict = judge(program, Variant(True, example), made)
    return verdict.kind if verdict.kind in (EQUAL, REFUSED) else f"{verdict.kind}: {verdict.detail}"


@pytest.mark.parametrize("name", LIVES)
def test_equal(name: str) -> None:
    assert verdict_of(LIVES[name]) == EQUAL


@life(Two)
def wanted_as_one_graph(run: Run) -> Steps:
    """torch.compile goes past a partitioned module. Where it may not (``fullgraph=True``, a strict export), it raised."""
    graph = torch.compile(run.module, backend="eager", fullgraph=True)
    yield graph(rand()), torch.export.export(run.module, (rand(),), strict=True).module()(rand())
    graph(rand()).sum().backward()
    run.module.left = nn.Linear(4, 4)
    yield run(rand()), graph(rand())


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_wanted_as_one_graph_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others make of it has no copies between devices: pages of torch's about that, or a graph that cannot run."""
    with pretending(monkeypatch):
        module = spread(Two(), (rand(),), TWO)
        for whole in (
            torch.compile(module, backend="eager", fullgraph=True),
            lambda x: torch.export.export(module, (x,)),
            lambda x: torch.jit.trace(module, (x,)),  # type: ignore[no-untyped-call]
        ):
            with pytest.raises(TraceError, match="trace the model before partition"):
                whole(rand())
        assert torch.fx.symbolic_trace(module).graph.nodes  # to look at


SOURCE = """
class Net(Two):
    def forward(self, x):
        return self.left(x) * scale + F.relu(self.right(x))
"""


def executed() -> nn.Module:
    """Keeps the namespace that it was written in, as models do that are made of a configuration or a cell of a notebook."""
    names: dict[str, Any] = {"__name__": "__main__", "Two": Two, "F": nn.functional, "scale": 2.0}
    exec(SOURCE, names)
    model: nn.Module = names["Net"]()
    model.names = names  # type: ignore[assignment]
    return model


@life(executed)
def namespace_that_the_model_holds(run: Run) -> Steps:
    """What Dynamo writes into it was taken for the model's doing, and put back."""
    yield run(rand())
    run.module.names["scale"] = 3.0
    yield run(rand())
