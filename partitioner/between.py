"""Several graphs of one call on several devices, with Python between them: planned one by one, to fit together.

Python finds on the first device what it goes on with. State that several graphs use belongs to the first of them; others take
it where it is. Modules that the call did not reach, and whose like have graphs of their own, go where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from torch import nn

from partitioner.compile import plan_of
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.rewrite.landing import together
from partitioner.ir.footprint import footprints, standing_bytes
from partitioner.ir.graph import Graph, StateMeta
from partitioner.ir.machine import Machine, caps, with_less
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


class Kept(NamedTuple):
    """What graphs keep between calls.

    Args:
        homes: by storage, the torch device on which it lies.
        sizes: by storage, the bytes that it takes there, with its gradient and what the optimizer keeps; where there are caps.
    """

    homes: Mapping[int, str]
    sizes: Mapping[int, int]

    def also(self, plan: Plan, metas: Mapping[str, StateMeta]) -> Kept:
        """With what another graph keeps."""
        homes = {metas[name].storage: device for name, device in state_devices(plan).items() if name in metas}
        weights = each_once(plan, plan.memory.state) if plan.memory is not None else ()
        return Kept({**self.homes, **homes}, {weight.storage: weight.total for _, _, weight in weights} | {**self.sizes})

    def bytes(self, without: Collection[int] = ()) -> Counter[str]:
        """Bytes on each torch device, but of some storages."""
        taken = Counter[str]()
        for storage, size in self.sizes.items():
            taken[self.homes[storage]] += 0 if storage in without else size
        return taken


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
    graphs, spare, first = [traced for traced, _ in found], list(_unreached(model, found)), machine.devices[0].torch_device
    _refuse_unmatched(graphs, spec)
    machine = with_less(machine, {first: beside(model, graphs).total() - sum(each.bytes for each in spare)})
    lives = [_live(plan_in_between(traced, machine, spec, {})) if caps(machine) else {} for traced in graphs]
    most, fullest, plans = _most(lives, machine), dict[str, int](), list[Plan]()
    kept = Kept({storage: first for traced in graphs for storage in _landed_state(traced)}, {})
    for traced, live in zip(graphs, lives, strict=True):
        metas = traced.state_metas
        others = kept.bytes(without={meta.storage for meta in metas.values()})
        fixed = {name: machine.name_at[kept.homes[meta.storage]] for name, meta in metas.items() if meta.storage in kept.homes}
        for own in (live, {}):  # what it needs itself is counted twice only if it needs it elsewhere
            room = Counter({device: size - own.get(device, 0) for device, size in most.items()})
            plan = plan_in_between(traced, with_less(machine, others + room), spec, fixed)
            after, needs = kept.also(plan, metas), _most([fullest, _live(plan)], machine)
            if not _missing(after, _most([most, needs], machine), machine):
                break
        kept, fullest = after, needs
        plans.append(plan)
    if missing := _missing(kept, fullest, machine):
        raise PlacementError(f"{len(plans)} graphs with Python between them do not fit together. {'; '.join(missing)}")
    return plans, _with_room(spare, kept, most, machine)


def _unreached(model: nn.Module, found: Sequence[tuple[Traced, Found]]) -> Iterator[Unreached]:
    """Experts without a row in the call, layers that were dropped: they will have graphs once they are called."""
    codes = {graph.code for _, graph in found}
    used = {meta.storage for traced, _ in found for meta in traced.state_metas.values()}
    for path, module in model.named_modules():
        if not path or getattr(getattr(type(module), "forward", None), "__code__", None) not in codes:
            continue
        own = {f"{path}.{name}": sizes(tensor) for name, tensor in all_state(module).items()}
        kept = {storage: kept for storage, _, kept, _ in own.values()}
        if own and used.isdisjoint(kept):
            used |= kept.keys()
            yield Unreached(tuple(own), sum(kept.values()))


def _with_room(spare: Sequence[Unreached], kept: Kept, most: Mapping[str, int], machine: Machine) -> dict[str, str]:
    """Each module to the device that has most room left, the largest first; without memory caps they stay on the first one.

    Raises:
        PlacementError: one does not fit.
    """
    taken, homes = kept.bytes(), dict[str, str]()
    left = {device: cap - taken[device] - most[device] for device, cap in caps(machine).items()}
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


def _live(plan: Plan) -> dict[str, int]:
    """Bytes that a plan takes on each torch device while it runs."""
    standing = standing_bytes(plan)
    return {device: each.total - standing.get(device, 0) for device, each in footprints(plan).items()}


def _most(lives: Sequence[Mapping[str, int]], machine: Machine) -> dict[str, int]:
    """The most that any of some graphs takes while it runs, on each torch device that has a memory cap."""
    return {device: max((live.get(device, 0) for live in lives), default=0) for device in caps(machine)}


def _missing(kept: Kept, live: Mapping[str, int], machine: Machine) -> list[str]:
    """Where there is too little room for what all keep and one takes while it runs, in words."""
    taken = kept.bytes()
    return [
        f"{device} has {format_size(cap)}; their state takes {format_size(taken[device])}, and the fullest of them "
        f"{format_size(live[device])} more while it runs"
        for device, cap in caps(machine).items()
        if taken[device] + live[device] > cap
    ]
