"""The plans of one call: of its one graph, or of several with Python between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from partitioner.between import beside, beside_each_other, plan_in_between
from partitioner.compile import for_this_call, plan_of
from partitioner.errors import DifferenceError, PartitionerError, PlacementError, SpecError, TraceError
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.trace import graph_of, graphs_of_call, view_of
from partitioner.ir.machine import Machine, accelerators_first, with_less
from partitioner.ir.plan import Plan, state_devices
from partitioner.model.call import Call
from partitioner.model.state import all_state, is_of_several_devices, only_device
from partitioner.runtime.moving import refuse_shared, staying, where_it_lies
from partitioner.spec.entries import collector_off
from partitioner.spec.spec import Spec


def is_whole(spec: Spec, machine: Machine) -> bool:
    """Whether one graph must be all of a call: if that is asked for, or nobody says and state lies on several devices."""
    return len(machine.places) > 1 if spec.fullgraph is None else spec.fullgraph


def is_between(spec: Spec, machine: Machine) -> bool:
    """Whether Python may stand between graphs although state lies on several devices."""
    return len(machine.places) > 1 and not is_whole(spec, machine)


@dataclass(frozen=True, eq=False)
class Plans:
    """What was planned for a call.

    Args:
        each: the plan of each graph.
        shown: the one that is expected to take longest; a provisional one where there is no graph.
        state: the tensors of the model that ops use, registered or not, by name.
        unreached: the torch device of each tensor that none of them uses, if that is not the first one.
    """

    each: Sequence[Plan]
    shown: Plan
    state: Mapping[str, Tensor]
    unreached: Mapping[str, str] = field(default_factory=dict)

    @property
    def homes(self) -> dict[str, str]:
        """The torch device on which each tensor of the model is used, by name."""
        used = {name: device for plan in (self.shown, *self.each) for name, device in state_devices(plan).items()}
        return {**self.unreached, **used}


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
    apart = len(machine.places) > 1
    try:
        found = graphs_of_call(module, call, whole=is_whole(spec, machine), apart=apart, check=check)
    except PartitionerError as error:
        if only_device(module) is None and is_of_several_devices(error):
            raise PlacementError(_lies_apart(module)) from None
        raise
    if apart:
        for traced, graph in found:
            refuse_shared(traced.graph, graph.inputs)
    if not found:
        return Plans((), without_graphs(plan_of(view_of(module), machine, spec)), {})
    if is_between(spec, machine):
        plans, unreached = beside_each_other(module, found, machine, spec)
    else:
        plans, unreached = [plan_of(traced, machine, spec) for traced, _ in found], {}
    first = max(plans, key=lambda plan: plan.in_a_row)
    notes = (f"one of {len(plans)} graphs; Python goes on after: {graph.reason}" for _, graph in found if graph.reason)
    shown = replace(first, machine=machine, graph=replace(first.graph, notes=(*first.graph.notes, *notes)))
    return Plans(plans, shown, {name: tensor for traced, _ in found for name, tensor in traced.state.items()}, unreached)


def plans_of_first(model: nn.Module, call: Call, machine: Machine, spec: Spec, *, check: bool) -> Plans:
    """Plan for the first call, where the model lies at the moment, wherever the call's arguments do.

    Whoever has put some of them beside the model may leave others on the CPU because they belong there, as the lengths of
    packed rows do; only a model that fails on that is given all where it lies itself.
    """
    lies = only_device(model)
    moved = call if lies is None else call.on(lies)
    if lies is None or not call.lies_partly_on(lies):
        return make_plans(model, moved, machine, spec, check=check)
    try:
        return make_plans(model, call, machine, spec, check=check)
    except Exception as failed:
        try:
            return make_plans(model, moved, machine, spec, check=check)
        except (TraceError, DifferenceError, PlacementError, SpecError):
            raise
        except Exception:  # the model's own, which it does not raise on what it was given
            raise failed from None


def _lies_apart(model: nn.Module) -> str:
    places = ", ".join(sorted({str(tensor.device) for tensor in all_state(model).values()}))
    return (
        f"the state of {type(model).__name__} lies on {places}, as an earlier partition may leave it, where its own forward "
        'cannot run. Move it to one of them, or the CPU, first: partition(parallel.original.to("cpu"), ...)'
    )


def without_graphs(plan: Plan, reasons: Iterable[str] = ()) -> Plan:
    """A provisional plan of a model in whose call no graph was found, with a note if it has ops."""
    why = "".join(f": {reason}" for reason in list(dict.fromkeys(reasons))[:1])
    notes = (f"the tracer found no graph in the example call, which runs as it is{why}",) if plan.graph.ops else ()
    return replace(plan, graph=replace(plan.graph, notes=(*plan.graph.notes, *notes)))


def where_state_lies(model: nn.Module, found: Found, machine: Machine, spec: Spec, homes: Mapping[str, str]) -> Plan:
    """The plan of a graph that is found once the model's state lies on its devices.

    Args:
        model: in whose call it was found.
        found: the graph.
        machine: several devices.
        spec: pins, colocations, policy, grain.
        homes: the torch device to which each tensor of the model was moved, by name.
    """
    asked, between = for_this_call(spec, model), is_between(spec, machine)
    traced = graph_of(model, found, between=between, apart=True, stays=staying(homes))
    refuse_shared(traced.graph, found.inputs)
    lies = where_it_lies(traced.state, machine.name_at)
    if between:
        return plan_in_between(traced, with_less(machine, beside(model, [traced])), asked, lies)
    return plan_of(traced, machine, asked, lies)
