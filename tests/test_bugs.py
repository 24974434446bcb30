"""Bugs that were, one test each. The docstring tells the story: what somebody saw, and what was behind it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from deadlocks import SharedLeaf, StaleView
from fake_devices import run_on_fake_devices
from lanes import assert_same, plans_of
from oracle import judge
from torch import Tensor, nn

from partitioner import partition
from partitioner.backends.codegen import generate
from partitioner.backends.threads import gradient_edges
from partitioner.compile import emit
from partitioner.errors import InputError, PartitionerError
from partitioner.ir.access import ANY, Access
from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph, Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.parse import parse
from partitioner.ir.program import Program, Wait
from partitioner.ir.task import TaskGraph, group
from partitioner.lower import LOWERINGS
from partitioner.lower import verify as verifier
from partitioner.lower.rules import Case
from partitioner.lower.verify import faults, verify
from partitioner.model.call import Call
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import constrain
from partitioner.plans import make_plan
from partitioner.spec.discover import pinned
from partitioner.spec.spec import PinSpec, Spec
from programs import lower, make_graph, random_costs, scheduled


def op(name: str, *inputs: str, touches: str = "", storages: tuple[str, ...] | None = None) -> Op:
    """An op that reads its inputs; ``touches`` as printed, and a storage of its own if no others are given."""
    accesses = tuple(Access(word[2:], word[0] == "w") for word in touches.split())
    return Op(name, "f", inputs, accesses, (name,) if storages is None else storages)


def placed(graph: Graph, machine: Machine, **lane: int) -> tuple[TaskGraph, Program]:
    """Every op a task of its own, on the lane given, issued in program order."""
    tasks = group(graph, [[known.name] for known in graph.ops])
    names = tuple(task.name for task in tasks.tasks)
    placement = Assignment("test", names, [lane[task.ops[0]] for task in tasks.tasks], range(len(names)))
    return tasks, scheduled(tasks, placement, random_costs(Random(0), graph, machine))


class Decoder(nn.Module):
    """Asks a tensor that another module made for its size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, memory: Tensor) -> Tensor:
        return self.layer(memory).reshape(memory.size(0), -1)


def test_a_decoder_that_asks_for_a_size_can_be_pinned_apart_from_its_encoder() -> None:
    """Encoder on one GPU, decoder on the other: "task t0 is pinned to gpu1 and to gpu0".

    The decoder calls ``memory.size(0)``. The pin on the decoder held that op, too, and `coarsen` put it with the tensor that
    it asks, which the encoder makes. Pins and colocations now place tensors only; a size is asked where its tensor is.
    """
    model = nn.Sequential()
    model.add_module("encoder", nn.Linear(4, 4))
    model.add_module("decoder", Decoder())
    machine = Machine((Device("gpu0", "cuda:0"), Device("gpu1", "cuda:1")))
    spec = Spec.model_validate(
        {"pins": [{"match": "encoder", "device": "gpu0"}, {"match": "decoder", "device": "gpu1"}], "colocate": [["decoder"]]}
    )
    plan = make_plan(model, Call.of((torch.ones(2, 4),), {}), machine, spec)
    devices = {name: machine.lanes[plan.placement.lane[task]].device_name for name, task in plan.tasks.task_of.items()}
    assert devices == {"encoder_linear": "gpu0", "decoder_layer_linear": "gpu1", "decoder_reshape": "gpu1"}


def test_a_size_does_not_follow_an_op_that_it_does_not_ask() -> None:
    """Ops that a plan must put on two devices came out as one task, and the plan failed.

    ``size`` asks an input of the model. Its only predecessor was an op of unknown effects, which comes before everything,
    and `coarsen` took any only predecessor for the op that is asked.
    """
    unknown = op("unknown", touches=f"w:{ANY} w:unknown")
    size = Op("size", "size", ("x",), (Access("x"),), (), tensor=False)
    write = op("write", "x", "size", touches="w:x", storages=("x",))
    graph = make_graph([unknown, size, write], outputs=["write"])
    machine = Machine((Device("a", "cuda:0"), Device("b", "cuda:1")))
    constraints = constrain(graph, [("unknown", "a"), ("write", "b")], [], {}, {})
    tasks = coarsen(graph, random_costs(Random(0), graph, machine), constraints, 0.0)
    assert tasks.task_of["unknown"] != tasks.task_of["size"]


def test_an_op_of_unknown_effects_does_not_race_with_events() -> None:
    """Models with a custom op were refused: "race: instructions 5 and 11 both touch None".

    An op of unknown effects conflicts with everything, and "everything" counted the Waits, Records and Frees of other lanes,
    which touch nothing. Nothing orders them with the op, and nothing needs to.
    """
    text = """
    program P
    lane 0 cuda0/0 cuda:0
    lane 1 cuda0/1 cuda:0
    0 record e0
    1 wait e0
    1 run t0 () -> ()
    1 record e1
    0 wait e1
    0 run unknown () -> () w:*
    1 record e2
    0 wait e2
    """
    verify(parse(text))


def test_a_view_that_came_back_keeps_the_copy_that_it_came_in() -> None:
    """A block was free to be used again while a lane still read it; seen by the oracle, in one of 300 random programs.

        lane 0  cuda:0   a                copy of v, m = reshape(v)     free v@cuda:0
        lane 1  cuda:0                                                                  r = f(m)
        lane 2  cuda:1   v = view(copy of a)

    ``m`` may be a view of the copy of ``v``. The graph knows ``v`` as a view of ``a``, and ``a`` lies on cuda:0, so ``m`` was
    said to share the storage of ``a``, and nobody knew that ``r`` still reads the copy.
    """
    ops = [
        op("a", touches="w:a"),
        op("v", "a", touches="r:a", storages=("a",)),
        op("m", "v", touches="r:a w:m", storages=("a", "m")),
        op("r", "m", touches="r:a r:m w:r"),
    ]
    machine = Machine((Device("gpu0", "cuda:0", lanes=2), Device("gpu1", "cuda:1")))
    tasks, program = placed(make_graph(ops, outputs=["r"]), machine, a=0, v=2, m=0, r=1)
    program = lower(program)
    assert program.by_name["m"].storages == ("a", "m", "v@cuda:0")
    assert judge(program, tasks) is None


def test_a_parameter_that_is_a_value_is_followed_to_other_devices() -> None:
    """As above, with a parameter that the model returns, and that an op on another device views.

    Only inputs and what ops make had a home. On the other device the parameter's storage was taken to be there, too, and the
    copy that the op really views was given up too early.
    """
    ops = [
        Op("load", "get_attr", (), (Access("self.w"),), ("self.w",), ("w",)),
        op("v", "load", touches="r:self.w w:v", storages=("self.w", "v")),
        op("r", "v", touches="r:self.w r:v w:r"),
    ]
    machine = Machine((Device("gpu0", "cuda:0"), Device("gpu1", "cuda:1", lanes=2)))
    tasks, program = placed(make_graph(ops, outputs=["load", "r"]), machine, load=0, v=1, r=2)
    program = lower(program)
    assert program.by_name["v"].storages == ("load@cuda:1", "v")
    assert judge(program, tasks) is None


def test_a_lane_does_not_wait_for_what_a_later_wait_tells_it() -> None:
    """Waits that order nothing, about one in ten.

    ``c`` reads what lanes 1 and 2 made, and lane 2 had waited for lane 1 before. Waits were put in the order of their events,
    so the one for lane 1 came first and looked necessary. And two Records with no work between them were two things to know.
    """
    ops = [op("a", touches="w:a"), op("b", "a", touches="r:a w:b"), op("c", "a", "b", touches="r:a r:b w:c")]
    machine = Machine((Device("gpu0", "cuda:0", lanes=3),))
    _, program = placed(make_graph(ops, outputs=["c"]), machine, a=1, b=2, c=0)
    for lowering in LOWERINGS[:3]:
        program = lowering(program)
    waits = [(item.lane, item.event) for item in program.instructions if isinstance(item, Wait)]
    assert waits == [(1, 0), (2, 0), (2, 1), (0, 2)], str(program)


@pytest.mark.parametrize("line", ["0 free a b", "0 copy a to b", "output a b", "lane 1 cpu/1 cpu"])
def test_a_line_with_words_too_many_is_not_half_read(line: str) -> None:
    """A typing error in a program was passed over, and the verifier then spoke about another program than the one on file.

    The parser took the words it needed and ignored the rest, numbers of lanes among it.
    """
    with pytest.raises(PartitionerError, match="line 2 of the program is not understood"):
        parse(f"program P\n{line}")


def test_a_stale_view_is_read_by_one_lane_at_a_time() -> None:
    """A property test hung, once in some thousand models: two lanes read one view whose base had been written.

    Autograd gives such a view a new grad_fn when it is next asked for, under a lock of the view. Dropping the old one may need
    the interpreter lock, and an indexing op on the other thread holds that while it waits for the view's lock. Now the first
    read after a write is a write, and the hazard rule keeps it apart from all others.
    """
    inputs = (torch.randn(3, 64), torch.randn(8, 8))
    plan = make_plan(StaleView(), Call.of(inputs, {}), Machine((Device("cpu", "cpu", lanes=2),)), Spec())
    mean = next(known for known in plan.graph.ops if known.target == "mean")
    slices = [known.name for known in plan.graph.ops if known.target == "getitem" and known.inputs == mean.inputs]
    assert len(slices) == 50
    assert all(plan.graph.edges.get((mean.name, name)) == "hazard" for name in slices)


def test_gradient_accumulators_of_shared_leaves_exist_before_the_lanes_start() -> None:
    """The property test hung again, on an input that required a gradient and was sliced in one lane and averaged in another.

    The first op that reads a leaf makes its gradient accumulator under a lock of the leaf, and that takes the interpreter lock,
    which an indexing op on the other thread holds while it waits for the leaf's lock. An accumulator that a view holds already
    is only looked up. A Python reference to it would not do: looking that up takes the interpreter lock again.
    """
    x, late = torch.randn(3, 64, requires_grad=True), torch.randn(8, 8)
    plan = make_plan(SharedLeaf(), Call.of((x, late), {}), Machine((Device("cpu", "cpu", lanes=2),)), Spec(grain=1e-9))
    names = tuple(plan.tasks.by_name)
    lanes = [int(plan.graph.by_name[task.ops[0]].target == "getitem") for task in plan.tasks.tasks]
    placement = Assignment("test", names, lanes, range(len(names)))
    program = scheduled(plan.tasks, placement, plan.costs)
    for lowering in LOWERINGS:
        program = lowering(program)
    code = generate(replace(plan, placement=placement, program=program))
    arguments = [{"x": x, "late": late}[name] for name in plan.graph.arguments]
    assert [plan.graph.arguments[position] for position in code.shared] == ["x"]
    (held,) = gradient_edges(code, arguments)
    assert held.grad_fn is not None and held.grad_fn.next_functions[0][0].variable is x
    with torch.no_grad():
        assert gradient_edges(code, arguments) == []


@pytest.mark.slow
@pytest.mark.parametrize("which", ["shared-leaf", "stale-view"])
def test_nothing_hangs(which: str) -> None:
    """Both stories above, ten thousand times over; each used to hang within some thousand calls."""
    script = Path(__file__).parent / "deadlocks.py"
    done = subprocess.run([sys.executable, script, which, "10000"], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("done\n"), done.stderr


class FromNothing(nn.Module):
    """Factory ops that say no device: on a GPU the model's author would see them on the CPU, and eager would mix devices."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij")
        return x + rows + columns * torch.ones(())


def test_a_factory_op_without_a_device_makes_its_tensor_where_it_lands() -> None:
    """A detection head's anchors lay on the CPU, whatever the plan said; `meshgrid` met both kinds on fake GPUs."""
    machine = Machine((Device("cuda:1", "cuda:1"),))
    ((plan, arguments, _),) = plans_of(FromNothing(), Call.of((torch.randn(3, 3),), {}), machine, Spec(policy="single"))
    (result,) = run_on_fake_devices(plan, arguments)
    assert str(result.device) == "lazy:1"


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        raise AssertionError("this model is not trained")


class Untrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = NoBackward.apply(self.layer(x))
        return result


def test_a_model_whose_backward_raises_is_compared_without_it() -> None:
    """Reformer in eval mode was refused, because the comparison with eager ran a backward that only training can take."""
    x = torch.randn(2, 3)
    model = Untrained().eval()
    assert torch.equal(partition(model, ["cpu"], example_inputs=x, copy=True)(x), model(x))


def test_pins_may_call_a_device_as_torch_does() -> None:
    """``cuda`` passed the spec, which knows that it means ``cuda:0``, and then no device was called so."""
    graph = make_graph([op("a", "x")], outputs=["a"])
    machine = Machine((Device("gpu", "cuda:0"), Device("host", "cpu")))
    for text, name in (("cuda", "gpu"), ("cuda:0", "gpu"), ("gpu", "gpu"), ("cpu:1", "host")):
        pins = pinned(machine, Spec(pins=(PinSpec(match="a", device=text),)))
        assert constrain(graph, pins, [], {}, {}).pinned("a") == name


class SometimesAView(nn.Module):
    """``contiguous`` copies a transposed tensor and gives any other as it is."""

    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        h.t().contiguous().view(-1).add_(1)
        return h * 2


def test_a_copy_that_might_be_a_view_is_written_through_its_views() -> None:
    """Found by interpreting plans on buffers: on a square example ``h.t()`` is copied, so the write seemed to miss ``h``.

    On an input of one row ``h.t()`` is contiguous, and the write goes through to ``h``. That a copy may be a view must hold for
    the views of the copy, too.
    """
    plan = make_plan(SometimesAView(), Call.of((torch.randn(3, 3),), {}), Machine((Device("cpu", "cpu", lanes=2),)), Spec())
    add, mul = (name for name, known in plan.graph.by_name.items() if known.target in ("add_", "mul") and name != "h")
    assert (add, mul) in plan.graph.edges
    parallel = partition(SometimesAView(), ["cpu:0", "cpu:1"], example_inputs=torch.randn(3, 3))
    row = torch.randn(1, 3)
    assert torch.equal(parallel(row), SometimesAView()(row))


class WritesItsInput(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        before = b * 2
        a.add_(1)
        return before + b


@pytest.mark.parametrize("examples", [True, False], ids=["with examples", "without"])
def test_inputs_that_share_a_storage_get_a_program_of_their_own(examples: bool) -> None:
    """Traced with two tensors, called with one given twice: nothing ordered the write of one before the read of the other."""
    model, x = WritesItsInput(), torch.randn(3)
    given = (torch.randn(3), torch.randn(3)) if examples else None
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=given, grain=1e-9)
    same, wanted = x.clone(), x.clone()
    assert torch.equal(parallel(same, same), model(wanted, wanted))
    assert torch.equal(same, wanted)
    assert ("add_", "add") in parallel.graph.edges
    apart = [x.clone(), x.clone()]
    assert torch.equal(parallel(*apart), model(x.clone(), x.clone()))
    assert ("add_", "add") not in parallel.graph.edges


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("examples", [True, False])
@pytest.mark.parametrize("as_buffer", [True, False])
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors_have_no_storage(layout: str, as_buffer: bool, examples: bool) -> None:
    """A graph network keeps its adjacency in a sparse tensor. Asked for its storage, that raises `NotImplementedError`, which
    came out of `partition` as it was. Its values have one.
    """

    class Neighbours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("adjacency", adjacency if as_buffer else None)

        def forward(self, x: Tensor, given: Tensor) -> Tensor:
            near = given if self.adjacency is None else self.adjacency
            return torch.sparse.mm(near, self.one(x)) * torch.sparse.mm(near, self.two(x)).relu_()

    dense = (torch.arange(25).reshape(5, 5) % 3 == 0).float()
    adjacency = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    model = Neighbours()
    inputs = torch.arange(20.0).reshape(5, 4), adjacency
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=inputs if examples else None, grain=1e-9)
    torch.testing.assert_close(parallel(*inputs), model(*inputs), rtol=0, atol=0)


NEIGHBOURS = torch.eye(4).to_sparse()


def test_a_sparse_tensor_in_a_global_has_a_size() -> None:
    """What forward speaks of is kept while it is traced, as far as there is room; asked for its bytes, a sparse one raised."""

    class Global(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if NEIGHBOURS is None else torch.relu(super().forward(x))

    model, x = Global(4, 4), torch.ones(2, 4)
    torch.testing.assert_close(partition(model, ["cpu:0", "cpu:1"], example_inputs=x)(x), model(x))


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("examples", [True, False])
def test_tensors_without_strides(examples: bool) -> None:
    """Nested ones and those of mkldnn raised an internal error of PyTorch's, in a call and in `partition`."""
    model = nn.Sequential(nn.Linear(4, 4))
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.strided)
    parallel = partition(model, ["cpu:0"], example_inputs=nested if examples else None)
    for found, wanted in zip(parallel(nested).unbind(), model(nested).unbind(), strict=True):
        assert torch.equal(found, wanted)
    dense = torch.ones(2, 4).to_mkldnn()
    parallel = partition(nn.ReLU(), ["cpu:0"], example_inputs=dense if examples else None)
    assert torch.equal(parallel(dense).to_dense(), torch.ones(2, 4))


def test_a_model_that_cannot_be_copied() -> None:
    """PyTorch copies no tensor that has a history. Its `RuntimeError` came out of `partition(copy=True)` as it was."""
    model = nn.Linear(4, 4)
    model.last = model.weight * 2
    with pytest.raises(InputError, match=r"Linear cannot be copied.*graph leaves(.|\n)*Leave out copy=True"):
        partition(model, ["cpu:0"], copy=True)


def test_an_accelerator_that_is_named_last_still_has_lane_0() -> None:
    """Only `partition` put accelerators first. Of a machine made by hand `make_plan` made a plan that no backend took."""
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    machine = Machine((Device("host", "cpu"), Device("gpu", "cuda:0")))
    spec = Spec(pins=(PinSpec(match="*", device="gpu"),))
    plan = make_plan(model, Call.of((x,), {}), machine, spec)
    assert [lane.torch_device for lane in plan.machine.lanes] == ["cuda:0", "cpu"]
    assert "linear(" in emit(plan, spec).code


class Iterated(nn.Module):
    """One layer, used four times, and once more under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(64, 64, bias=False)
        self.last = nn.Linear(64, 64, bias=False)
        self.last.weight = self.step.weight

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.step(x).relu()
        return self.last(x)


def test_shared_state_takes_its_memory_once() -> None:
    """A weight that five ops use needed room five times, so a model was refused on a machine that holds it."""
    model, x = Iterated(), torch.ones(2, 64)
    cap = 64 * 64 * 4 + 8 * 2 * 64 * 4
    machine = Machine((Device("one", "cuda:0", memory=cap), Device("two", "cuda:1", memory=cap)))
    plan = make_plan(model, Call.of((x,), {}), machine, Spec(training=False))
    assert sum(cost.state for cost in plan.costs.ops.values()) == 64 * 64 * 4
    assert sum(cost.moved for cost in plan.costs.ops.values()) > 5 * 64 * 64 * 4


def test_a_plan_is_verified_against_the_caps_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule `capacity` was asked beside the verifier, which saw no cap of any plan."""
    cases: list[Case] = []
    monkeypatch.setattr(verifier, "faults", lambda case: cases.append(case) or faults(case))
    machine = Machine((Device("cpu", "cpu", memory=2**20),))
    make_plan(nn.Linear(4, 4), Call.of((torch.ones(2, 4),), {}), machine, Spec())
    assert [(case.memory, case.resident) for case in cases] == [({"cpu": 2**20}, {"cpu": 80})]


class Worded(nn.Module):
    """Calls a parameter, a submodule and a keyword argument what only Python may call something."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"in": nn.Linear(4, 4), "class": Scaled()})
        self.parts["class"].register_forward_hook(lambda _module, _args, result: result)  # so it is called as a whole

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["in"](x) + self.parts["class"](**{"lambda": x})


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("is", nn.Parameter(torch.full((4,), 2.0)))

    def forward(self, **named: Tensor) -> Tensor:
        return named["lambda"] * getattr(self, "is")


def test_names_that_are_words_of_python() -> None:
    """Generated code read ``R.is`` and ``m(lambda=x)``: a raw SyntaxError out of `partition`."""
    model, x = Worded(), torch.randn(2, 4)
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=x, grain=1e-9)
    assert torch.equal(parallel(x), model(x))
    bare = Scaled()
    assert torch.equal(partition(bare, ["cpu"], example_kwargs={"lambda": x})(**{"lambda": x}), bare(**{"lambda": x}))


class OtherDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return x @ x


def test_a_switch_of_the_dtype_of_autocast_is_not_lost() -> None:
    """The tracer had a list of modes of its own, without dtypes: under autocast, a region with another one was dropped."""
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parallel = partition(OtherDtype(), ["cpu:0", "cpu:1"], example_inputs=x)
        found, wanted = parallel(x), OtherDtype()(x)
    assert found.dtype == torch.float16
    assert_same(wanted, found)
