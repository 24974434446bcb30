"""Sections of a graph: where a result is made of other results, as a loss is of logits, its section begins at these.

    logits = head(left(x) + right(x)); loss = cross_entropy(logits, labels)        section of loss: cross_entropy

The caller's graph has a node for each section. So `logits` has there the gradient that it has in eager, for whoever asks
`torch.autograd.grad`, `retain_grad` or a hook; and to the section of `loss` it is an argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from partitioner.ir.gradient import BackwardError, Gradient
from partitioner.ir.graph import Graph


def sections(graph: Graph, gradients: Sequence[Gradient]) -> Mapping[str, int]:
    """The section of each op that makes a result of other results, from 1 on in the order of these; all other ops are in 0.

    Args:
        graph: the forward.
        gradients: those of one call.

    Raises:
        BackwardError: something else than results and arguments passes between sections, or eager adds up their parts of a
            gradient in turns.
    """
    reads: defaultdict[str, list[Gradient]] = defaultdict(list)
    for gradient in gradients:
        for part in gradient.parts:
            if part.count:
                reads[part.op].append(gradient)
    found, first, number = dict[str, int](), set[str](), 0
    for result in sorted((one for one in gradients if one.results), key=lambda one: graph.position[one.maker]):
        ops, is_made_of_others = _back(result, reads)
        if not is_made_of_others:
            first |= ops
            continue
        if ops & found.keys():
            raise BackwardError(f"the result {result.name} and another one are made of other results together")
        number += 1
        found |= dict.fromkeys(ops, number)
    if first & found.keys():
        raise BackwardError("a result is made of other results, and of what these are made of")
    for gradient in gradients:
        _refuse_crossings(gradient, graph.position, found, first)
    return found


def inside(gradient: Gradient, number: int, sections: Mapping[str, int]) -> Gradient:
    """A gradient as a section has it: what was made elsewhere is an argument, and what others read is theirs.

    What an earlier section reads of a later one leads to no result.
    """
    maker = sections.get(gradient.maker, 0)
    parts = tuple(part for part in gradient.parts if maker <= sections.get(part.op, 0) == number)
    is_mine = bool(gradient.maker) and maker == number
    return replace(gradient, parts=parts) if is_mine else replace(gradient, maker="", parts=parts, results=())


def views(graph: Graph, number: int, sections: Mapping[str, int]) -> tuple[str, ...]:
    """The ops of a section, if all that they do is to give another view of one result; otherwise none.

    Each takes what the one before it makes and nothing else, and writes nothing.
    """
    ops = [op for op in graph.ops if sections.get(op.name, 0) == number] if number else []
    last = ops[0].inputs[:1] if ops else ()
    for op in ops:
        source = graph.by_name.get(last[0]) if last and op.inputs == last else None
        if source is None or {*op.storages} != {*source.storages} or op.state or op.mode is not None:
            return ()
        if any(access.write for access in op.accesses):
            return ()
        last = (op.name,)
    return tuple(op.name for op in ops)


def _back(result: Gradient, reads: Mapping[str, Sequence[Gradient]]) -> tuple[set[str], bool]:
    """The ops of which a result is made, as far back as other results; whether there are any."""
    ops, waiting, others = {result.maker}, [result.maker], False
    while waiting:
        for gradient in reads.get(waiting.pop(), ()):
            others |= bool(gradient.results)
            if gradient.maker and not gradient.results and gradient.maker not in ops:
                ops.add(gradient.maker)
                waiting.append(gradient.maker)
    return ops, others


def _refuse_crossings(gradient: Gradient, position: Mapping[str, int], sections: Mapping[str, int], first: set[str]) -> None:
    """Results alone pass between sections, also of what has a gradient in other calls alone; later ones have later parts."""
    maker = sections.get(gradient.maker, 0)
    parts = [part.op for part in sorted(gradient.parts, key=lambda part: position[part.op])]
    order = [sections.get(op, 0) for op in parts if op in sections or op in first]
    crosses = {*order} - {maker} if gradient.maker and not gradient.results else any(number < maker for number in order)
    if crosses:
        raise BackwardError(f"{gradient.name} is read past the results that are between it and another result")
    if order != sorted(order):
        raise BackwardError(f"the gradient of {gradient.name} would be summed in another order than eager's")
