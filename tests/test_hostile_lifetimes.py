"""Programs of two mechanisms at once, and of a module's whole life: what trains, is saved, traced by others, and trained on.

Each is judged as those of `hostile` are: it does what the plain model does. On several devices it may be refused, and then
nothing has changed.
"""

from __future__ import annotations

import gc
import inspect
import typing
import weakref
from typing import Any

import pytest
import torch
from hostile.judge import EQUAL, REFUSED, Change, Variant, judge
from hostile.program import Program, Run, Steps, Two, kept_in, raised, rand
from lanes import OLD_TORCH
from pretend import TWO, pretending, spec, spread
from torch import Tensor, nn

from partitioner import InputError, TraceError, partition
from partitioner.tuning import trials, tuned

LIVES: dict[str, Program] = {}

life = kept_in(LIVES)

pytestmark = pytest.mark.usefixtures("scattering")


def verdict_of(program: Program, example: bool = True, made: Change | None = None) -> str:
    verdict = judge(program, Variant(True, example), made)
    return verdict.kind if verdict.kind in (EQUAL, REFUSED) else f"{verdict.kind}: {verdict.detail}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LIVES)
def test_equal(name: str) -> None:
    assert verdict_of(LIVES[name]) == EQUAL


@life(Two)
def wanted_as_one_graph(run: Run) -> Steps:
    """torch.compile goes past a partitioned module. Where it may not (``fullgraph=True``, a strict export), it raised."""
    graph = torch.compile(run.module, backend="eager", fullgraph=True)
    yield graph(rand())
    if not OLD_TORCH:  # whose strict export knows no bound methods: docs/limits.md
        yield torch.export.export(run.module, (rand(),), strict=True).module()(rand())
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
            *([] if OLD_TORCH else [lambda x: torch.export.export(module, (x,))]),  # it leaves a hook of its own behind
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


class Retried(Two):
    """Fails once, late: what a server's timeout does, or a worker that was not there yet."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise TimeoutError("late")
        return self.left(x) * self.right(x)


def test_second_call_that_fails_where_a_short_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is run several times to see whether it is faster alone, and what it raised in there came out of partition()."""
    for each in (tuned, trials):
        monkeypatch.setattr(each, "SHORT", 10.0)
    timed = partition(Retried(), ["cpu:0", "cpu:1"], example_inputs=(rand(),))
    assert timed.calls == 0
    timed(rand())
    with pytest.raises(TimeoutError):
        timed(rand())


@life(Two)
def stances_of_the_compiler(run: Run) -> Steps:
    """A call that needs a program failed where the user forbids torch.compile to compile again."""
    for rows, stance in enumerate(("fail_on_recompile", "eager_on_recompile", "force_eager", "default")):
        with torch.compiler.set_stance(stance):
            yield run(rand()), run(rand(2 + rows, 4))


def test_stances_of_the_compiler_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran the model as it is, whose state lies on several devices."""
    with pretending(monkeypatch), torch.compiler.set_stance("force_eager"):
        module = spread(Two(), (rand(),), TWO)
        assert {str(parameter.device) for parameter in module.parameters()} == {*TWO}
        assert module(rand(2, 4)).shape == (2, 4)
        assert module._partitioner_programs.pieces


class Typed(Two):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.left(x) * scale + self.right(x)


@life(Typed)
def asked_for_by_those_who_call(run: Run) -> Steps:
    """How servers and trainers learn what to pass: annotations named what the user's file has not, or were ``*args``."""
    for forward in (run.module.forward, type(run.module).forward):
        yield str(inspect.signature(forward)), inspect.getfullargspec(forward).args, sorted(typing.get_type_hints(forward))


@life(Two)
def registered_under_names_that_are_shown(run: Run) -> Steps:
    """A partitioned module has ``plan``, ``graph`` and others to look at, so registering one said that it is there already."""
    run.module.register_buffer("plan", torch.ones(4))
    run.module.register_parameter("graph", nn.Parameter(torch.ones(4)))
    run.module.add_module("code", nn.Linear(4, 4))
    run.module.register_forward_hook(lambda module, given, found: module.code(found) * module.graph + module.plan)
    yield list(run.module.state_dict()), run(rand()), raised(lambda: run.module.register_buffer("left", torch.ones(1)))
    run(rand()).sum().backward()
    run.module.register_buffer("dag", torch.ones(4), persistent=False)
    run.module.dag = torch.zeros(4)
    yield list(run.module.state_dict()), run.module.dag


class HoldsItself(Two):
    def forward(self, x: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {"y": self.left(x) + self.right(x)}
        found["all"] = found
        return found


@pytest.mark.parametrize("spreads", [False, True], ids=["lanes", "devices"])
def test_result_that_holds_itself(spreads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no end at which it could be compared, and the refusal said that the model fails on its example."""
    with pretending(monkeypatch):
        where: dict[str, Any] = {"spec": spec(TWO)} if spreads else {"devices": ["cpu:0", "cpu:1"]}
        with pytest.raises(InputError, match=r"the result of HoldsItself holds itself.*check=False"):
            partition(HoldsItself(), example_inputs=(rand(),), **where)
        for module in (
            partition(HoldsItself(), **where),
            partition(HoldsItself(), example_inputs=(rand(),), check=False, **where),
        ):
            found = module(rand())
            assert found["all"] is found


def test_inference_tensors_in_training_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager refuses to save them for backward. A copy on another device is a tensor like others, so it went on."""
    with torch.inference_mode():
        x = rand() + 0
    with pretending(monkeypatch):
        module = spread(Two(), (rand(),), TWO)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            module(x)
        with torch.no_grad():
            assert not module(x).requires_grad


class Tended(Two):
    """With methods that do something to its parts, or with them."""

    def freeze(self) -> None:
        for parameter in self.left.parameters():
            parameter.requires_grad = False

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.right.parameters(), 0.1)

    def shown(self) -> Tensor:
        print(self.left(torch.ones(1, 4)))
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!")

    def taught(self) -> Tensor:
        print("teaching")
        result: Tensor = self(torch.ones(2, 4))
        return result


@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
def test_methods_that_tend_a_model_on_several_devices(example: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be one graph was refused, though it computes nothing; and before the first call, as one of forward."""
    with pretending(monkeypatch):
        module = partition(Tended(), spec=spec(TWO), **({"example_inputs": (rand(),)} if example else {}))
        module.freeze()
        assert [parameter.requires_grad for parameter in module.parameters()] == [False, False, True, True]
        optimizer = module.optimizer()
        module(rand()).sum().backward()
        optimizer.step()
        assert module.left.weight.grad is None
        assert module.taught().shape == (2, 4)
        with pytest.raises(TraceError, match=r"Tended.shown cannot be one graph"):
            module.shown()


def test_a_result_goes_when_the_caller_lets_it_go() -> None:
    """Errors that torch catches while it traces kept frames of ours, with what these had, until Python looked for circles.

    With the result its history lived on: a weight's ``data`` became larger, and the next backward found the old size.
    """

    class Decides(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.right(x)
            return self.left(x).relu(), y + 1 if x.shape[0] == 5 and y.sum() > 0 else y

    parallel = partition(Decides(), ["cpu:0", "cpu:1"], example_inputs=(rand(),))
    gc.collect()
    gc.disable()
    try:
        for rows in (3, 5, 5, 4):
            result = weakref.ref(parallel(rand(rows, 4))[0])
            assert result() is None
    finally:
        gc.enable()
