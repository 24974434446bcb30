"""Several graphs of one call on several devices, with Python between them: planned one by one, to fit together.

Python finds on the first device what it goes on with. State that several graphs use belongs to the first of them; others take
it where it is. Modules that the call did not reach, and whose like have graphs of their own, go where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from torch import nn

from partitioner.compile import plan_of
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.rewrite.landing import together
from partitioner.ir.footprint import footprints, standing_bytes
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Machine, capped, caps
from partitioner.ir.plan import Plan, each_once, state_devices
from partitioner.ir.units import format_size
from partitioner.model.state import all_state, sizes
from partitioner.planner.constraints import matches
from partitioner.spec.spec import Spec


class Unreached(NamedTuple):
    """A module of which no graph uses anything, and whose like have graphs of their own.

    Args:
        names: of its parameters and buffers.
        bytes: that they take.
    """

    names: tuple[str, ...]
    bytes: int


def beside_each_other(
    model: nn.Module, found: Sequence[tuple[Traced, Found]], machine: Machine, spec: Spec
) -> tuple[list[Plan], dict[str, str]]:
    """Plans of the graphs of one call on several devices, between which Python stands.

    State that no graph uses goes to the first device. Where there are memory caps each graph is planned alone first, to know
    what it needs while it runs; then in order, beside what those before it keep, leaving as much as the others need.

    Returns:
        The plans, and the torch device of each tensor of a module that the call did not reach, by name.

    Raises:
        PlacementError: they do not keep the machine's memory caps together, or a pattern matches no op of any.
    """
    graphs, spare = [traced for traced, _ in found], list(_unreached(model, found))
    _refuse_unmatched(graphs, spec)
    unused = beside(model, graphs).total() - sum(each.bytes for each in spare)
    machine = less(machine, {machine.devices[0].torch_device: unused})
    lives = [_live(plan_in_between(traced, machine, spec, {})) if caps(machine) else {} for traced in graphs]
    most = {device: max((live.get(device, 0) for live in lives), default=0) for device in caps(machine)}
    plans: list[Plan] = []
    lies = dict.fromkeys((storage for traced in graphs for storage in _landed_state(traced)), machine.devices[0].name)
    names = {device.torch_device: device.name for device in machine.devices}
    for traced, live in zip(graphs, lives, strict=True):
        metas = traced.state_metas
        kept = _kept(plans, {meta.storage for meta in metas.values()})
        fixed = {name: lies[meta.storage] for name, meta in metas.items() if meta.storage in lies}
        for own in (live, {}):  # what it needs itself is counted twice only if it needs it elsewhere
            room = Counter({device: size - own.get(device, 0) for device, size in most.items()})
            plan = plan_in_between(traced, less(machine, kept + room), spec, fixed)
            if not _missing([*plans, plan], machine, most):
                break
        lies |= {metas[name].storage: names[device] for name, device in state_devices(plan).items() if name in metas}
        plans.append(plan)
    if missing := _missing(plans, machine):
        raise PlacementError(f"{len(plans)} graphs with Python between them do not fit together. {'; '.join(missing)}")
    return plans, _with_room(spare, plans, machine, most)


def _unreached(model: nn.Module, found: Sequence[tuple[Traced, Found]]) -> Iterator[Unreached]:
    """Experts without a row in the call, layers that were dropped: they will have graphs once they are called."""
    codes = {graph.code for _, graph in found}
    used = {meta.storage for traced, _ in found for meta in traced.state_metas.values()}
    for path, module in model.named_modules():
        if not path or getattr(type(module).forward, "__code__", None) not in codes:
            continue
        own = {f"{path}.{name}": sizes(tensor) for name, tensor in all_state(module).items()}
        kept = {storage: kept for storage, _, kept, _ in own.values()}
        if own and used.isdisjoint(kept):
            used |= kept.keys()
            yield Unreached(tuple(own), sum(kept.values()))


def _with_room(spare: Sequence[Unreached], plans: Sequence[Plan], machine: Machine, most: Mapping[str, int]) -> dict[str, str]:
    """Each module to the device that has most room left, the largest first; without memory caps they stay on the first one.

    Raises:
        PlacementError: one does not fit.
    """
    kept, homes = _kept(plans), dict[str, str]()
    left = {device: cap - kept[device] - most.get(device, 0) for device, cap in caps(machine).items()}
    for module in sorted(spare, key=lambda one: -one.bytes) if left else ():
        device = max(left, key=left.__getitem__)
        left[device] -= module.bytes
        if left[device] < 0:
            raise PlacementError(
                f"{module.names[0]} and what else is in its module, {format_size(module.bytes)} that the example call did not "
                f"reach, fit on no device beside what its graphs keep; {device} lacks {format_size(-left[device])}"
            )
        homes |= dict.fromkeys(module.names, device)
    return homes


def _landed_state(traced: Traced) -> Iterator[int]:
    """The storages of state of which a graph gives a view: it belongs where Python goes on, whichever graph uses it first."""
    here, metas = together(traced.graph), traced.state_metas
    return (metas[name].storage for op in traced.graph.ops if op.name in here for name in op.state)


def plan_in_between(traced: Traced, machine: Machine, spec: Spec, fixed: Mapping[str, str]) -> Plan:
    """The plan of a graph after which Python may go on, on the first device. Pins and colocations may speak of other graphs."""
    graph = traced.graph
    pins = tuple(pin for pin in spec.pins if _speaks_of(pin.match, graph))
    colocate = tuple(tuple(each for each in group if _speaks_of(each, graph)) for group in spec.colocate)
    mine = spec.model_copy(update={"pins": pins, "colocate": colocate})
    return plan_of(traced, machine, mine, fixed, dict.fromkeys(together(graph), machine.devices[0].name))


def _speaks_of(pattern: str, graph: Graph) -> bool:
    return any(matches(op, pattern) for op in graph.ops)


def _refuse_unmatched(graphs: Sequence[Traced], spec: Spec) -> None:
    """Raise for a pattern of a pin or a colocation that speaks of no graph."""
    for pattern in (*(pin.match for pin in spec.pins), *chain.from_iterable(spec.colocate)):
        if not any(_speaks_of(pattern, traced.graph) for traced in graphs):
            raise PlacementError(
                f"pattern {pattern!r} matches no op of the {len(graphs)} graphs of this call. Patterns are globs over module "
                "paths and op names."
            )


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


def _missing(plans: Sequence[Plan], machine: Machine, most: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """Where a graph, or one that needs the ``most`` while it runs, has too little room beside what all keep, in words."""
    kept, lives = _kept(plans), [most, *map(_live, plans)]
    found = []
    for device, cap in caps(machine).items():
        live = max(each.get(device, 0) for each in lives)
        if kept[device] + live > cap:
            found.append(
                f"{device} has {format_size(cap)}; their state takes {format_size(kept[device])}, and the fullest of them "
                f"{format_size(live)} more while it runs"
            )
    return found
