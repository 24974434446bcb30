"""One model of the corpus, judged: eager beside partitioned, everything a caller can see, on CPU lanes and on fake GPUs.

Spreading is forced, because no sensible plan would give a model this small more than one lane: every op is a task (`grain`),
hand-offs cost nothing, and the policy `scatter` sends tasks to lanes by their names. One partitioned module goes through all
*scenes*: the call that it was made for, other batch sizes, the caller's contexts, the other mode, a changed attribute.
"""

from __future__ import annotations

import math
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import _corpus_models  # puts tests/ on the path
import numpy
import torch
from fake_devices import run_on_fake_devices
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves, tree_map

from partitioner import partition
from partitioner.compile import plan_of
from partitioner.errors import PartitionerError, PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import graph_of
from partitioner.ir.plan import Plan
from partitioner.planner import coarsen
from partitioner.planner.policies import POLICIES
from partitioner.runtime.module import Parallel
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import difference
from partitioner.testing.runs import Call, Run
from partitioner.testing.runs import run as run_with_torch_seeded
from scatter import scatter

POLICIES.setdefault("corpus_scatter", scatter)

LANES = 3
GPUS = 8
BATCHES = (1, 2, 3, 5)
ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 2e-2, torch.float64: 1e-9, torch.complex64: 1e-4}
"""The largest difference, as a share of the largest magnitude, that is called rounding; 1e-4 where nothing is said."""

BEYOND_FAKES = (DynamicOutputShapeException, DataDependentOutputException, UnsupportedOperatorException)
"""Without values nothing can be said: a shape or a Python number depends on them, or an op has no fake kernel."""

FREE = {"handoff": 0, "overhead": 1e-3}
CPU_SPEC: dict[str, Any] = {"devices": [{"device": "cpu", "lanes": LANES, **FREE}], "grain": 1e-9, "policy": "corpus_scatter"}


def gpu_spec(policy: str, memory: int | None = None) -> dict[str, Any]:
    """Eight GPUs between which copies are free. With a cap on their memory, chains are cut into parts as well."""
    names = [f"cuda:{index}" for index in range(GPUS)]
    links = [{"source": a, "target": b, "latency": 0, "bandwidth": 1e15} for a in names for b in names if a != b]
    devices = [{"device": name, "memory": memory, "handoff": 0, "overhead": 0, "bandwidth": 1e5} for name in names]
    return {"devices": devices, "links": links, "grain": 1e-9, "policy": policy}


@dataclass
class Row:
    """What was found of one model in one mode. A cell is ``bits``, a largest relative difference, or words.

    ``graphs`` is how many graphs a call is, with Python between them. ``scenes`` has a cell for each scene.
    ``verdict``: ``equal`` (to the last bit), ``rounding``, ``refused`` (an error that says why), ``failed`` (an error that no
    user should see), ``different`` (silently wrong), ``eager`` (eager itself does not run).
    """

    name: str
    family: str
    mode: str
    graphs: int = 0
    ops: int = 0
    lanes: int = 0
    outputs: str = ""
    gradients: str = ""
    buffers: str = ""
    keys: str = ""
    scenes: dict[str, str] = field(default_factory=dict)
    fake: str = ""
    verdict: str = ""
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, verdict: str, reason: str) -> None:
        """Keep the worst verdict, and every reason."""
        order = ("", "equal", "rounding", "eager", "refused", "failed", "different")
        self.verdict = max(self.verdict, verdict, key=order.index)
        if reason:
            self.reasons.append(reason)


def judge(name: str, mode: str) -> Row:
    """Everything about one model in one mode (``eval`` or ``train``)."""
    entry = _corpus_models.CORPUS[name]
    row = Row(name, entry.family, mode)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _judge(entry, row)
        except Exception as error:  # one model must not end the run
            row.note("failed", f"the benchmark itself: {brief(error)}")
    row.seconds = time.perf_counter() - start
    torch._dynamo.reset()
    return row


def _judge(entry: _corpus_models.Entry, row: Row) -> None:
    model = entry.build().train(row.mode == "train")
    args, kwargs = entry.inputs()
    call = Call(args, kwargs, seed=0, train=model.training, gradients=model.training, calls=2)
    try:
        wanted, again = run(model, call), run(model, call)
    except Exception as error:
        row.note("eager", f"eager: {brief(error)}")
        return
    if differs(compared(wanted, again)):
        row.note("eager", "eager differs from itself from call to call")
        return
    fresh = entry.build().train(row.mode == "train")  # a model that ran may hold what cannot be copied
    parallel = attempt(row, "partition", lambda: spread(fresh, args, kwargs))
    if parallel is None:
        return
    row.graphs = len(parallel._partitioner_programs.latest.pieces)
    if row.graphs:
        row.ops, row.lanes = len(parallel.graph.ops), len(set(parallel.placement.lane.values()))
    found = attempt(row, "run", lambda: run(parallel, call))
    if found is not None:
        _compare(row, entry, wanted, found)
    for scene in scenes(entry, row.mode):
        attempt(row, scene.name, lambda scene=scene: _play(row, scene, model, parallel))
    attempt(row, "fake GPUs", lambda: _fake(row, model, args, kwargs, wanted))


# Scenes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A call in other circumstances. ``before`` is done to either module, and tells whether there was anything to do."""

    name: str
    call: Call
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    before: Callable[[nn.Module], bool] = lambda module: True


def scenes(entry: _corpus_models.Entry, mode: str) -> Iterator[Scene]:
    args, kwargs = entry.inputs()
    train = mode == "train"

    def call(args: Any = args, kwargs: Any = kwargs, train: bool = train) -> Call:
        return Call(args, kwargs, seed=0, train=train, gradients=False, calls=1)

    for batch in BATCHES if not train else ():
        yield Scene(f"batch {batch}", call(*entry.inputs(batch=batch, seed=7)))
    if not train:
        yield Scene("inference", call(), torch.inference_mode)
        yield Scene("autocast", call(), lambda: torch.autocast("cpu", torch.bfloat16))
        yield Scene("attribute", call(), before=change_attribute)
    yield Scene("flipped", call(train=not train))


def change_attribute(module: nn.Module) -> bool:
    """Change the first number with a fraction that is an attribute of a module: a probability, an epsilon, a scale."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if type(value) is float and not name.startswith("_"):
                setattr(part, name, value * 0.5 + 1e-3)
                return True
    return False


def _play(row: Row, scene: Scene, model: nn.Module, parallel: Parallel) -> None:
    if not (scene.before(model) and scene.before(parallel)):
        return
    try:
        with scene.context():
            wanted = run(model, scene.call)
    except Exception:  # some models do not take other batches or dtypes in eager either
        row.scenes[scene.name] = "eager refuses"
        return
    with scene.context():
        found = run(parallel, scene.call)
    cells = compared(wanted, found)
    if differs(cells):
        with scene.context():
            again = run(model, scene.call)
        if differs(compared(wanted, again)):
            row.scenes[scene.name] = "eager differs from itself"
            return
    worst = max(cells.values(), key=lambda cell: ("equal", "rounding", "different").index(cell[1]))
    row.scenes[scene.name] = worst[0] if worst[1] != "equal" else "bits"
    row.note(worst[1], worst[2] and f"{scene.name}: {worst[2]}")


def run(module: nn.Module, call: Call) -> Run:
    """What a caller can see of a run. Some models draw from Python's and NumPy's generators; those start alike here too."""
    random.seed(0)
    numpy.random.seed(0)
    return run_with_torch_seeded(module, call)


def attempt(row: Row, what: str, act: Any) -> Any:
    """What ``act`` gives; an error is noted, as a refusal if it is one of ours."""
    try:
        return act()
    except PartitionerError as error:
        row.note("refused", f"{what}: {brief(error)}")
    except Exception as error:
        row.note("failed", f"{what}: {brief(error)}")
    return None


def brief(error: BaseException, most: int = 400) -> str:
    """An exception in one line."""
    text = re.sub(r"(/[^\s/:'\"]+)+/(site-packages|benchmarks|partitioner)/", "", " ".join(str(error).split()))
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''} {notes[:200]}".strip()


def spread(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Parallel:
    """The model over three CPU lanes, whether that pays or not: chains are not contracted, so that every op is a task."""
    with mock.patch.object(coarsen._Clusters, "chain", lambda self: None):
        return partition(model, example_inputs=args, example_kwargs=kwargs, spec=CPU_SPEC)


# Comparing ------------------------------------------------------------------------------------------------------------


def _compare(row: Row, entry: _corpus_models.Entry, wanted: Run, found: Run) -> None:
    cells = compared(wanted, found)
    row.outputs, row.buffers, row.keys = (cells[key][0] for key in ("outputs", "buffers", "keys"))
    row.gradients = cells["gradients"][0] if row.mode == "train" else ""
    if differs(cells) and _only_rounding(entry, row.mode):
        row.note("rounding", "rounding is amplified: in double precision the results agree")
        return
    for what, (_, verdict, reason) in cells.items():
        row.note(verdict, reason and f"{what}: {reason}")


def _only_rounding(entry: _corpus_models.Entry, mode: str) -> bool:
    """Whether model and program agree in double precision, where rounding has 29 bits more to hide in."""
    try:
        model, fresh = (entry.build().double().train(mode == "train") for _ in range(2))
        args, kwargs = tree_map(_doubled, entry.inputs())
        call = Call(args, kwargs, seed=0, train=model.training, gradients=model.training, calls=2)
        cells = compared(run(model, call), run(spread(fresh, args, kwargs), call), loosen=100)
    except Exception:  # a model that does not run in double precision is judged by what was seen
        return False
    return not differs(cells)


def _doubled(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


Cell = tuple[str, str, str]
"""What to print, the verdict, and a reason where there is one."""


def compared(wanted: Run, found: Run, loosen: float = 1) -> dict[str, Cell]:
    """A cell for outputs (with what was written to inputs, and random state), gradients, buffers and keys."""
    largest = max(map(_largest, wanted.gradients.values()), default=0.0)
    outputs = _group(wanted.outputs | wanted.inputs, found.outputs | found.inputs, loosen=loosen)
    if wanted.structure != found.structure:
        outputs = ("form", "different", f"{found.structure} instead of {wanted.structure}"[:300])
    if any(difference(wanted.generators[key], found.generators[key]) for key in wanted.generators):
        outputs = (outputs[0], "different", "the random generator is left in another state")
    missing = wanted.keys ^ found.keys
    return {
        "outputs": outputs,
        "gradients": _group(wanted.gradients, found.gradients, largest, loosen),
        "buffers": _group(wanted.state, found.state, loosen=loosen),
        "keys": ("differ", "different", f"keys {sorted(missing)[:3]}") if missing else ("yes", "equal", ""),
    }


def differs(cells: Mapping[str, Cell]) -> bool:
    """Whether any cell is more than rounding."""
    return any(verdict == "different" for _, verdict, _ in cells.values())


def _group(wanted: Mapping[str, Any], found: Mapping[str, Any], scale: float | None = None, loosen: float = 1) -> Cell:
    """The worst of several values by name."""
    worst, faults = 0.0, []
    for name in dict.fromkeys([*wanted, *found]):
        if name not in wanted or name not in found:
            faults.append(f"{name} is there only {'in eager' if name in wanted else 'in the program'}")
            continue
        fault = difference(wanted[name], found[name])
        if fault is None:
            continue
        gap = _gap(wanted[name], found[name], scale)
        worst = max(worst, gap)
        if gap > loosen * ROUNDING.get(getattr(wanted[name], "dtype", None), 1e-4):  # type: ignore[arg-type]
            faults.append(f"{name}: {fault}")
    if faults:
        return f"**{worst:.0e}**" if math.isfinite(worst) else "**no**", "different", "; ".join(faults[:2])
    return (f"{worst:.0e}", "rounding", "") if worst else ("bits", "equal", "")


def _gap(wanted: Any, found: Any, scale: float | None) -> float:
    """The largest difference as a share of the largest magnitude; infinite where values cannot be compared."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return math.inf
    if (wanted.shape, wanted.dtype, wanted.requires_grad) != (found.shape, found.dtype, found.requires_grad):
        return math.inf
    left, right = _real(wanted), _real(found)
    if not torch.equal(left.isnan(), right.isnan()):
        return math.inf
    gap = (left - right).abs().nan_to_num(0.0, math.inf)
    gap[left == right] = 0.0  # equal infinities
    size = _largest(wanted) if scale is None else scale
    return float(gap.max()) / max(size, 1e-30) if gap.numel() else 0.0


def _largest(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0.0
    magnitude = _real(value).abs().nan_to_num(0.0, 0.0)
    return float(magnitude.max())


def _real(value: torch.Tensor) -> torch.Tensor:
    dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).double()


# Fake devices ---------------------------------------------------------------------------------------------------------


def _graphs(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Traced, tuple[Any, ...]]]:
    """The graphs of one call, each with the values of its placeholders."""
    graphs: list[tuple[Traced, tuple[Any, ...]]] = []

    def receive(found: Found) -> Callable[..., Any]:
        graph = graph_of(model, found)
        graphs.append((graph, found.inputs))
        return lambda *arguments: interpret(graph.graph, arguments)

    compiled(model, receive)(*args, **kwargs)
    return graphs


def _gpu_plan(model: nn.Module, graph: Traced, policy: str) -> Plan:
    """A plan for GPUs of which each has room for the state twice, or for anything where what is computed needs more."""
    state = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    for memory in (max(2 * state, 1), None):
        spec = load_spec(gpu_spec(policy, memory))
        try:
            return plan_of(graph, build_machine(spec), spec)
        except PlacementError:
            if memory is None:
                raise
    raise AssertionError("the last plan has no cap")


def _fake(row: Row, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Run) -> None:
    """PyTorch itself looks for ops whose inputs lie on two devices. Balanced in eval mode, scattered in train mode."""
    row.fake = "no"
    with torch.random.fork_rng(devices=()):
        graphs = _graphs(model, args, kwargs)
    if len(graphs) != 1:
        row.fake = f"{len(graphs)} graphs: one device only"
        return
    ((graph, inputs),) = graphs
    plan = _gpu_plan(model, graph, "by_level" if row.mode == "eval" else "corpus_scatter")
    try:
        results = run_on_fake_devices(plan, inputs)
    except (*BEYOND_FAKES, NotImplementedError, AttributeError) as error:
        if isinstance(error, NotImplementedError | AttributeError) and "lazy" not in str(error).lower():
            raise
        row.fake = f"cannot say: {brief(error, 60)}"
        return
    shapes = sorted(tuple(leaf.shape) for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor))
    eager = sorted(tuple(v.shape) for n, v in wanted.outputs.items() if n.startswith("call 0") and isinstance(v, torch.Tensor))
    if len(shapes) == len(eager) and shapes != eager:
        row.note("different", f"fake GPUs: results of shapes {shapes[:4]} instead of {eager[:4]}")
        return
    used = len({plan.machine.lanes[lane].device_name for lane in plan.placement.lane.values()})
    row.fake = f"{used} GPUs" if used > 1 else "1 GPU"
