"""One model of the corpus, judged: eager beside partitioned, everything a caller can see, on CPU lanes and on fake GPUs.

Spreading is forced, because no sensible plan would give a model this small more than one lane: every op is a task (`grain`),
hand-offs cost nothing, and the policy `scatter` sends tasks to lanes by their names.
"""

from __future__ import annotations

import math
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import _corpus_models  # puts tests/ on the path
import numpy
import torch
from accounts import both_accounts, hold_against
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves, tree_map

from partitioner import partition
from partitioner.backends.fake import run_on_fake_devices
from partitioner.compile import make_plan
from partitioner.errors import PartitionerError, PlacementError
from partitioner.ir.plan import Plan
from partitioner.model.call import example_call
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
    devices = [{"device": name, "memory": memory, **FREE} for name in names]
    return {"devices": devices, "links": links, "grain": 1e-9, "policy": policy}


@dataclass
class Row:
    """What was found of one model in one mode. A cell is ``bits``, a largest relative difference, or words.

    ``targets`` are the ops that were met, and ``cautious`` those for which the static table says more than was seen.
    ``verdict``: ``equal`` (to the last bit), ``rounding``, ``refused`` (an error that says why), ``failed`` (an error that no
    user should see), ``different`` (silently wrong), ``eager`` (eager itself does not run).
    """

    name: str
    family: str
    mode: str
    frontend: str = ""
    ops: int = 0
    lanes: int = 0
    outputs: str = ""
    gradients: str = ""
    buffers: str = ""
    keys: str = ""
    batch: str = ""
    fake: str = ""
    verdict: str = ""
    reasons: list[str] = field(default_factory=list)
    targets: set[str] = field(default_factory=set)
    cautious: Counter[str] = field(default_factory=Counter)
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
    if "different" in {group[1] for group in compared(wanted, again).values()}:
        row.note("eager", "eager differs from itself from call to call")
        return
    fresh = entry.build().train(row.mode == "train")  # a model that ran may hold what cannot be copied
    parallel = attempt(row, "partition", lambda: spread(fresh, args, kwargs))
    if parallel is None:
        return
    row.frontend, row.ops = parallel.graph.tracer, len(parallel.graph.ops)
    row.lanes = len(set(parallel.placement.lane.values()))
    attempt(row, "static table", lambda: _hold_effects(row, parallel, example_call(fresh, args, kwargs)))
    found = attempt(row, "run", lambda: run(parallel, call))
    if found is not None:
        _compare(row, entry, wanted, found)
    if row.mode == "eval":
        attempt(row, "another batch", lambda: _other_batch(row, entry, model))
    attempt(row, "fake GPUs", lambda: _fake(row, model, args, kwargs, wanted))


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


def _hold_effects(row: Row, parallel: Parallel, call: Any) -> None:
    """Hold the static table of effects against what is observed; it may say more, and never less."""
    graph = parallel.graph
    if not graph.observed:
        return
    accounts = both_accounts(graph.fx, parallel.original, graph.constants, call.tensors)
    forgotten, row.cautious, row.targets = hold_against(accounts)
    if forgotten:
        row.note("failed", f"static table: {'; '.join(forgotten[:3])}")


# Comparing ------------------------------------------------------------------------------------------------------------


def _compare(row: Row, entry: _corpus_models.Entry, wanted: Run, found: Run) -> None:
    cells = compared(wanted, found)
    row.outputs, row.buffers, row.keys = (cells[key][0] for key in ("outputs", "buffers", "keys"))
    row.gradients = cells["gradients"][0] if row.mode == "train" else ""
    if any(verdict == "different" for _, verdict, _ in cells.values()) and _only_rounding(entry, row.mode):
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
    return all(verdict != "different" for _, verdict, _ in cells.values())


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


# Another batch size, fake devices -------------------------------------------------------------------------------------


def _other_batch(row: Row, entry: _corpus_models.Entry, model: nn.Module) -> None:
    """A plain partition, as users make it: the examples, then one example more than it was made for."""
    args, kwargs = entry.inputs()
    devices = [f"cpu:{number}" for number in range(LANES)]
    parallel = partition(entry.build(), devices, example_inputs=args, example_kwargs=kwargs)
    for batch in (2, 3):
        args, kwargs = entry.inputs(batch=batch, seed=7)
        call = Call(args, kwargs, seed=0, train=False, gradients=False, calls=1)
        try:
            wanted = run(model, call)
        except Exception:  # some models do not take other batches in eager either
            row.batch = "eager refuses"
            return
        cell, verdict, reason = compared(wanted, run(parallel, call))["outputs"]
        row.batch = cell
        row.note(verdict, reason and f"batch of {batch}: {reason}")


def _gpu_plan(model: nn.Module, call: Any, policy: str) -> Plan:
    """A plan for GPUs of which each has room for the state twice, or for anything where what is computed needs more."""
    state = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    for memory in (max(2 * state, 1), None):
        spec = load_spec(gpu_spec(policy, memory))
        try:
            return make_plan(model, call, build_machine(spec), spec)
        except PlacementError:
            if memory is None:
                raise
    raise AssertionError("the last plan has no cap")


def _fake(row: Row, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Run) -> None:
    """PyTorch itself looks for ops whose inputs lie on two devices. Balanced in eval mode, scattered in train mode."""
    row.fake = "no"
    call = example_call(model, args, kwargs)
    assert call is not None
    plan = _gpu_plan(model, call, "by_level" if row.mode == "eval" else "corpus_scatter")
    try:
        results = run_on_fake_devices(plan, model, call.tensors)
    except (*BEYOND_FAKES, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) and "'Lazy' backend" not in str(error):
            raise
        row.fake = f"cannot say: {brief(error, 60)}"
        return
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    eager = [tuple(v.shape) for n, v in wanted.outputs.items() if n.startswith("call 0") and isinstance(v, torch.Tensor)]
    if shapes != eager and len(shapes) == len(eager):
        row.note("different", f"fake GPUs: results of shapes {shapes[:4]} instead of {eager[:4]}")
        return
    used = len({plan.machine.lanes[lane].device_name for lane in plan.placement.lane.values()})
    row.fake = f"{used} GPUs" if used > 1 else "1 GPU"
