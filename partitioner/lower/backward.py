"""The backward of a program, on the lanes of its forward: each segment's where the segment ran, with the waits reversed.

    forward    lane 0   s0 . record ........... wait . s2         gradients    s2 -> s0, s1 -> s0, s2 -> s1
               lane 1        wait . s1 . record

    backward   lane 0   s2 . record ........... wait . s0
               lane 1        wait . s1 . record

It is a Program as any other: its values are terms of gradients, its Runs are segments in reverse order. So the same passes put
in its events, and the same rules verify it. What cannot run like this is refused with a reason, and autograd does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner.ir.access import ANY, LATER, RNG, Access, is_storage
from partitioner.ir.gradient import Backward, BackwardError, Gradient, Part, Step, same_sum
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program, Run, Value
from partitioner.ir.segment import Segment, segments, wide_tasks
from partitioner.lower import lowered
from partitioner.lower.sections import inside, sections, views
from partitioner.lower.verify import verify


def backward(plan: Plan, gradients: Sequence[Gradient]) -> tuple[Backward, ...]:
    """Put the backward of a plan on its lanes.

    Args:
        plan: of the forward.
        gradients: those of one call, as eager has them.

    Returns:
        That of each section, whose programs are verified. Gradients have the bits that eager's have.

    Raises:
        BackwardError: that cannot be had, and why.
    """
    section_of = sections(plan.graph, gradients)
    numbers = range(1 + max(section_of.values(), default=0))
    looks = {number: ops for number in numbers if (ops := views(plan.graph, number, section_of))}
    whole = _View(plan, tuple(gradients))
    whole.refuse_writes(section_of)
    whole.refuse_shared_results({op for ops in looks.values() for op in ops})
    found, reasons = [], []
    for number in numbers:
        own = (inside(gradient, number, section_of) for gradient in gradients)
        view = _View(plan, tuple(one for one in own if one.maker or one.parts))
        if number in looks:
            given = tuple(replace(gradient, parts=()) for gradient in view.gradients if gradient.results)
            found.append(Backward(None, {}, given, views=looks[number]))
            continue
        try:
            found.append(_on_lanes(view))
        except BackwardError as error:
            reasons.append(str(error))
            found.append(_on_one_thread(view))
    if not any(each.program for each in found):
        raise BackwardError(f"{reasons[0]}{' between one result and the next' if len(found) > 1 else ''}")
    return tuple(found)


def _on_lanes(view: _View) -> Backward:
    """The backward of a section.

    Raises:
        BackwardError: it cannot be put on lanes, and why.
    """
    handed = tuple(each for each in map(view.handed_over, view.wanted()) if each.parts or each.results)
    if len({each.name for each in handed}) < len(handed):
        raise BackwardError("a tensor is handed over before it is written in place and after")
    steps = {step.segment.name: step for step in _steps(view, handed)}
    if len({step.segment.lane for step in steps.values() if step.terms}) < 2:
        raise BackwardError("no two lanes have a backward")
    return Backward(verify(lowered(_program(view, handed, steps))), steps, handed, view.apart())


def _on_one_thread(view: _View) -> Backward:
    """The backward of a section whose ops pass nothing on between them, but to others.

    Raises:
        BackwardError: not even that can be had, and why.
    """
    handed = tuple(
        replace(each, parts=()) if each.maker else view.handed_over(each)
        for each in view.wanted()
        if each.results or (not each.maker and each.parts)
    )
    return Backward(None, {}, handed, view.apart())


@dataclass(frozen=True)
class _View:
    """A plan and its gradients, with what several questions need."""

    plan: Plan
    gradients: tuple[Gradient, ...]

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.plan.program, wide_tasks(self.plan.placement))

    @cached_property
    def home(self) -> Mapping[str, str]:
        """The segment of each op, by name; ``""`` is that of arguments, which no op makes."""
        tasks = self.plan.tasks.by_name
        return {"": ""} | {op: one.name for one in self.segments for task in one.tasks for op in tasks[task].ops}

    @cached_property
    def issued(self) -> Mapping[str, int]:
        """The place of each op in the order in which the lanes issue them."""
        runs = (item.task for item in self.plan.program.instructions if isinstance(item, Run))
        return {op: number for number, op in enumerate(op for task in runs for op in self.plan.tasks.by_name[task].ops)}

    @cached_property
    def arguments(self) -> frozenset[str]:
        """The storages of the arguments."""
        graph = self.plan.graph
        return frozenset(f"self.{graph.states[name]}" if name in graph.states else name for name in graph.arguments)

    def wanted(self) -> Iterator[Gradient]:
        """The gradients with those parts alone that come from segments on which a result depends."""
        made: defaultdict[str, list[Gradient]] = defaultdict(list)
        for gradient in self.gradients:
            made[self.home[gradient.maker]].append(gradient)
        live: set[str] = set()
        for segment in reversed(self.segments):
            if any(one.results or any(self.home[part.op] in live for part in one.parts) for one in made[segment.name]):
                live.add(segment.name)
        for gradient in self.gradients:
            yield replace(gradient, parts=tuple(part for part in gradient.parts if self.home[part.op] in live))

    def handed_over(self, gradient: Gradient) -> Gradient:
        """The gradient with those parts alone that come from other segments than its maker's, the last op's first.

        Raises:
            BackwardError: its parts cannot be summed in eager's order.
        """
        mine, position = self.home[gradient.maker], self.plan.graph.position
        there = sorted((p for p in gradient.parts if self.home[p.op] != mine), key=lambda p: position[p.op], reverse=True)
        if not there:
            return replace(gradient, parts=())
        here = sorted((p for p in gradient.parts if self.home[p.op] == mine), key=lambda p: self.issued[p.op], reverse=True)
        ops = [part.op for part in there]
        eager = sorted((position[p.op] for p in gradient.parts for _ in range(p.count)), reverse=True)
        ours = [[position[part.op]] * part.count for part in there]
        ours += [[position[part.op]] for part in here for _ in range(part.count)]
        caller = -1  # whose loss comes after all ops
        if (
            len(set(ops)) < len(ops)
            or "" in {part.value for part in there}
            or not same_sum([caller, *eager] if gradient.results else eager, [[caller], *ours] if gradient.results else ours)
        ):
            raise BackwardError(f"the gradient of {gradient.name} would be summed in another order than eager's")
        return replace(gradient, parts=tuple(there))

    def refuse_writes(self, section_of: Mapping[str, int]) -> None:
        """What is written in place has a history that changes: one segment makes and writes it, and others read it after that.

        Where a segment has ops of several sections, one of these does. Arguments are not asked: none that has a gradient is
        written.
        """
        homes: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for op in reversed(self.plan.graph.ops):
            for access in op.accesses:
                resource = access.resource
                if resource == ANY:
                    raise BackwardError(f"nothing is known of what {op.shown} writes")
                if not is_storage(resource) or resource in self.arguments:
                    continue
                here = (self.home[op.name], section_of.get(op.name, 0))
                if homes[resource] - {here}:
                    raise BackwardError(f"{op.shown} and later ops on another lane share {resource}, which is written")
                if access.write and resource != op.name:
                    homes[resource].add(here)

    def refuse_shared_results(self, looks: Collection[str]) -> None:
        """Results with one storage: whoever writes one of them in place changes the history of the others.

        Args:
            looks: the ops that make those which the caller gets as views of other ones.
        """
        owner = dict.fromkeys(self.arguments, "the arguments")
        for gradient in (each for each in self.gradients if each.results):
            if gradient.leaf is not None:
                raise BackwardError(f"the result {gradient.value} holds several tensors")
            for storage in self.plan.graph.by_name[gradient.value].storages if gradient.maker not in looks else ():
                if storage in owner:
                    raise BackwardError(f"the result {gradient.value} may share memory with {owner[storage]}")
                owner[storage] = f"the result {gradient.value}"

    @cached_property
    def reads(self) -> Mapping[str, Sequence[tuple[Gradient, Part]]]:
        """What each op adds to gradients, by its name."""
        found: defaultdict[str, list[tuple[Gradient, Part]]] = defaultdict(list)
        for gradient in self.gradients:
            for part in gradient.parts:
                found[part.op].append((gradient, part))
        return found

    def apart(self) -> frozenset[str]:
        """Arguments that some result is not made of, while another one is."""
        results = [gradient for gradient in self.gradients if gradient.results]
        reached = [
            {tensor.name for tensor, part in self._flows(result, lambda _, part: part.count > 0) if part.count}
            for result in results
        ]
        every = set.intersection(*reached) if reached else set[str]()
        return frozenset(gradient.value for gradient in self.gradients if not gradient.maker and gradient.name not in every)

    def leads(self, gradient: Gradient) -> frozenset[str]:
        """The terms that leave the segment which made a tensor, to which its gradient flows on."""
        home = self.home[gradient.maker]
        flows = self._flows(gradient, lambda tensor, _: self.home[tensor.maker] == home)
        return frozenset(tensor.term(part) for tensor, part in flows if self.home[tensor.maker] != home)

    def _flows(self, gradient: Gradient, goes_on: Callable[[Gradient, Part], bool]) -> Iterator[tuple[Gradient, Part]]:
        """What is added to the gradients of others as that of a tensor flows on."""
        waiting, seen = [gradient.maker], {gradient.maker, ""}
        while waiting:
            for tensor, part in self.reads.get(waiting.pop(), ()):
                yield tensor, part
                if tensor.maker not in seen and goes_on(tensor, part):
                    seen.add(tensor.maker)
                    waiting.append(tensor.maker)


def _steps(view: _View, handed: Sequence[Gradient]) -> Iterator[Step]:
    """The backward of each segment from which gradients flow on, in the order of the forward."""
    sums: defaultdict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    terms: defaultdict[str, list[str]] = defaultdict(list)
    leads: defaultdict[str, dict[str, frozenset[str]]] = defaultdict(dict)
    for gradient in handed:
        found = tuple(map(gradient.term, gradient.parts))
        if gradient.maker:
            home = view.home[gradient.maker]
            sums[home].append((gradient.name, (gradient.given, *found) if gradient.results else found))
            leads[home][gradient.name] = view.leads(gradient)
        for part in gradient.parts:
            terms[view.home[part.op]].append(gradient.term(part))
    for segment in view.segments:
        if sums[segment.name]:
            yield Step(segment, tuple(sums[segment.name]), tuple(terms[segment.name]), leads[segment.name])


def _program(view: _View, handed: Sequence[Gradient], steps: Mapping[str, Step]) -> Program:
    """The Runs of backward, in reverse order, and the values that they pass; nothing waits yet."""
    plan, runs = view.plan, []
    made = {term for step in steps.values() for term in step.terms}
    for step in reversed(list(steps.values())):
        reads = tuple(term for _, terms in step.sums for term in terms)
        runs.append(Run(step.segment.lane, step.segment.name, reads, step.terms, tuple(_touches(view, step.segment))))
    values, inputs, outputs = [], [], []
    for gradient in handed:
        terms = [gradient.term(part) for part in gradient.parts]
        if gradient.results:
            inputs.append(gradient.given)
        if not gradient.maker:
            outputs += terms
        names = [gradient.given, *terms] if gradient.results else terms
        values += [Value(name, "cpu", _bytes(plan, gradient), (name,)) for name in names if name in {*made, gradient.given}]
    return Program(
        f"{plan.graph.name}, backward", plan.program.lanes, tuple(values), tuple(inputs), tuple(outputs), tuple(runs)
    )


def _touches(view: _View, segment: Segment) -> Iterator[Access]:
    """What the backward of a segment may touch beside gradients: a checkpoint draws and writes buffers once more."""
    tasks, known = view.plan.tasks.by_name, view.plan.graph.by_name
    found = {access for task in segment.tasks for op in tasks[task].ops for access in known[op].accesses}
    if Access(LATER, True) in found:
        yield from sorted(a for a in found if a.resource in (LATER, RNG) or (a.write and a.resource in view.arguments))


def _bytes(plan: Plan, gradient: Gradient) -> int:
    states = plan.graph.states
    if gradient.value in states:
        return plan.state[states[gradient.value]].bytes if states[gradient.value] in plan.state else 0
    op = plan.graph.by_name.get(gradient.value)
    if op is None:
        meta = plan.graph.metas.get(gradient.value)
        return 0 if meta is None else meta.bytes
    number = gradient.leaf or 0
    return op.outputs[number].bytes if number < len(op.outputs) else 0
