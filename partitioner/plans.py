"""The plans of one call: of its one graph, or of several with Python between them.

On several devices Python finds what it goes on with, all results and the state that no graph uses, on the first of them. State
belongs to the graph that comes first, and the others take it where it is; each is planned beside what the others keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from partitioner.compile import for_this_call, plan_of
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.rewrite.landing import land, together
from partitioner.frontend.trace import graph_of, graphs_of_call, view_of
from partitioner.ir.footprint import footprints, standing_bytes
from partitioner.ir.machine import Machine, accelerators_first, capped, caps
from partitioner.ir.plan import Plan, each_once, state_devices
from partitioner.ir.units import format_size
from partitioner.model.call import Call
from partitioner.model.state import all_state, sizes
from partitioner.runtime.moving import refuse_shared, staying, where_it_lies
from partitioner.spec.entries import collector_off
from partitioner.spec.spec import Spec


def is_whole(spec: Spec, machine: Machine) -> bool:
    """Whether one graph must be all of a call: if that is asked for, or nobody says and state lies on several devices."""
    return len(machine.places) > 1 if spec.fullgraph is None else spec.fullgraph


@dataclass(frozen=True, eq=False)
class Plans:
    """What was planned for a call.

    Args:
        each: the plan of each graph.
        shown: the one that is expected to take longest; a provisional one where there is no graph.
        state: the tensors of the model that ops use, registered or not, by name.
    """

    each: Sequence[Plan]
    shown: Plan
    state: Mapping[str, Tensor]

    @property
    def homes(self) -> dict[str, str]:
        """The torch device on which each tensor of the model is used, by name."""
        return {name: device for plan in (self.shown, *self.each) for name, device in state_devices(plan).items()}


def make_plan(module: nn.Module, call: Call | None, machine: Machine, spec: Spec, *, check: bool = False) -> Plan:
    """The plan to show of a call, as `make_plans` makes it."""
    return make_plans(module, call, machine, spec, check=check).shown


def make_plans(module: nn.Module, call: Call | None, machine: Machine, spec: Spec, *, check: bool = False) -> Plans:
    """Plan for a call of ``module``. Touches no device.

    Args:
        module: the model; left as it was.
        call: example arguments, if there are any; without them the plan is provisional.
        machine: what to plan for; accelerators are put first, for lane 0 is the caller's.
        spec: pins, colocations, policy, grain.
        check: compare the traced graph with the model on the call.

    Raises:
        TraceError, DifferenceError, PlacementError, SpecError: what the model or the spec does not allow.
    """
    machine, spec = accelerators_first(machine), for_this_call(spec, module)
    if call is None:
        with collector_off():  # a view of 10^5 ops is millions of objects, all of which stay to its end
            return Plans((), plan_of(view_of(module), machine, spec), {})
    apart, whole = len(machine.places) > 1, is_whole(spec, machine)
    found = graphs_of_call(module, call, whole=whole, apart=apart, check=check)
    if apart:
        for traced, graph in found:
            refuse_shared(traced.graph, graph.inputs)
    graphs = [traced for traced, _ in found]
    if apart and not whole:
        plans = beside_each_other(module, graphs, machine, spec)
    else:
        plans = [plan_of(traced, machine, spec) for traced in graphs]
    if not plans:
        return Plans((), without_graphs(plan_of(view_of(module), machine, spec)), {})
    first = max(plans, key=lambda plan: plan.in_a_row)
    notes = (f"one of {len(plans)} graphs; Python goes on after: {graph.reason}" for _, graph in found if graph.reason)
    shown = replace(first, machine=machine, graph=replace(first.graph, notes=(*first.graph.notes, *notes)))
    return Plans(plans, shown, {name: tensor for traced in graphs for name, tensor in traced.state.items()})


def without_graphs(plan: Plan, reasons: Iterable[str] = ()) -> Plan:
    """A provisional plan of a model in whose call no graph was found, with a note if it has ops."""
    why = "".join(f": {reason}" for reason in list(dict.fromkeys(reasons))[:1])
    notes = (f"the tracer found no graph in the example call, which runs as it is{why}",) if plan.graph.ops else ()
    return replace(plan, graph=replace(plan.graph, notes=(*plan.graph.notes, *notes)))


def beside_each_other(model: nn.Module, graphs: Sequence[Traced], machine: Machine, spec: Spec) -> list[Plan]:
    """Plans of the graphs of one call on several devices, between which Python stands.

    State that no graph uses goes to the first device. Where there are memory caps each graph is planned alone first, to know
    what it needs while it runs; then in order, beside what those before it keep, leaving as much as the others need.

    Raises:
        PlacementError: they do not keep the machine's memory caps together.
    """
    machine = less(machine, {machine.devices[0].torch_device: beside(model, graphs).total()})
    lives = [_live(plan_in_between(traced, machine, spec, {})) if caps(machine) else {} for traced in graphs]
    most = {device: max((live.get(device, 0) for live in lives), default=0) for device in caps(machine)}
    plans: list[Plan] = []
    lies: dict[int, str] = {}
    names = {device.torch_device: device.name for device in machine.devices}
    for traced, live in zip(graphs, lives, strict=True):
        metas = traced.state_metas
        taken = _kept(plans, {meta.storage for meta in metas.values()})
        taken += Counter({device: size - live.get(device, 0) for device, size in most.items()})
        fixed = {name: lies[meta.storage] for name, meta in metas.items() if meta.storage in lies}
        plan = plan_in_between(traced, less(machine, taken), spec, fixed)
        lies |= {metas[name].storage: names[device] for name, device in state_devices(plan).items() if name in metas}
        plans.append(plan)
    if missing := _missing(plans, machine):
        raise PlacementError(f"{len(plans)} graphs with Python between them do not fit together. {'; '.join(missing)}")
    return plans


def where_state_lies(model: nn.Module, found: Found, machine: Machine, spec: Spec, homes: Mapping[str, str]) -> Plan:
    """The plan of a graph that is found once the model's state lies on its devices.

    Args:
        model: in whose call it was found.
        found: the graph.
        machine: several devices.
        spec: pins, colocations, policy, grain.
        homes: the torch device to which each tensor of the model was moved, by name.
    """
    asked, whole = for_this_call(spec, model), is_whole(spec, machine)
    if not whole:
        land(found.module)
    traced = graph_of(model, found, apart=True, stays=staying(homes))
    refuse_shared(traced.graph, found.inputs)
    lies = where_it_lies(traced.state, {device.torch_device: device.name for device in machine.devices})
    if whole:
        return plan_of(traced, machine, asked, lies)
    return plan_in_between(traced, less(machine, beside(model, [traced])), asked, lies)


def plan_in_between(traced: Traced, machine: Machine, spec: Spec, fixed: Mapping[str, str]) -> Plan:
    """The plan of a graph after which Python may go on, on the first device."""
    return plan_of(traced, machine, spec, fixed, dict.fromkeys(together(traced.graph), machine.devices[0].name))


def less(machine: Machine, taken: Mapping[str, int]) -> Machine:
    """The machine with less memory, by torch device."""
    return capped(machine, lambda one: None if one.memory is None else max(0, one.memory - taken.get(one.torch_device, 0)))


def beside(model: nn.Module, graphs: Iterable[Traced]) -> Counter[str]:
    """Bytes of the model's state that no graph uses, on each torch device; what is in one storage counts once."""
    seen = {meta.storage for traced in graphs for meta in traced.state_metas.values()}
    taken = Counter[str]()
    for tensor in all_state(model).values():
        storage, _, kept, _ = sizes(tensor)
        if storage not in seen:
            seen.add(storage)
            taken[str(tensor.device)] += kept
    return taken


def _kept(plans: Iterable[Plan], mine: Collection[int] = ()) -> Counter[str]:
    """Bytes that plans keep on each torch device between calls, each storage once, but those that are ``mine``."""
    kept, seen = Counter[str](), {*mine}
    for plan in plans:
        for device, _, weight in each_once(plan, plan.memory.state if plan.memory is not None else {}):
            if weight.storage not in seen:
                seen.add(weight.storage)
                kept[device] += weight.total
    return kept


def _live(plan: Plan) -> dict[str, int]:
    """Bytes that a plan takes on each torch device while it runs."""
    standing = standing_bytes(plan)
    return {device: each.total - standing.get(device, 0) for device, each in footprints(plan).items()}


def _missing(plans: Sequence[Plan], machine: Machine) -> list[str]:
    """Where a graph has too little room beside what the others keep, in words."""
    kept, lives = _kept(plans), [_live(plan) for plan in plans]
    found = []
    for device, cap in caps(machine).items():
        live = max((each.get(device, 0) for each in lives), default=0)
        if kept[device] + live > cap:
            found.append(
                f"{device} has {format_size(cap)}; their state takes {format_size(kept[device])}, and the fullest of them "
                f"{format_size(live)} more while it runs"
            )
    return found
