"""What was made of a module, in a few lines: what ``print(parallel)`` shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from partitioner.backends.backward.training import Training
from partitioner.backends.compiling.compiled import Compiled
from partitioner.backends.cudagraphs.graphs import Graphed
from partitioner.backends.executable import Executable
from partitioner.ir.plan import Plan, Tried

Piece = tuple[Executable, str]
"""A graph's program, and why Python goes on after it."""

GOES_ON = "  Python goes on after this graph, as it is:"


class Alone(NamedTuple):
    """Elements in the arguments of a call up to which the model runs as it is; -1 for none.

    Args:
        called: of any call but those of training.
        trained: of one in training, where gradients are recorded.
    """

    called: int = -1
    trained: int = -1


def summary(
    plan: Plan,
    pieces: Sequence[Piece],
    graphs: int,
    tried: Sequence[Tried],
    failures: Iterable[str],
    alone: Alone,
    fixed: Iterable[str] = (),
) -> str:
    """What was made.

    Args:
        plan: the one that stands for all of it.
        pieces: the programs of the call that ran last; of all calls, if none has run.
        graphs: how many of them that call had.
        tried: the plans that were run on the examples, first of all the one that is kept.
        failures: why frames run as they are.
        alone: calls that run as they are.
        fixed: why there is a program for each size.
    """
    lines = [plan.summary()]
    if not plan.graph.observed:
        lines.append("  provisional: no shapes are known; traced and planned for real at the first call")
    breaks = dict.fromkeys(reason for _, reason in pieces if reason)
    if graphs > 1 or breaks:
        lines.append(f"  one of {graphs} graphs, with Python between them, which goes on after:" if graphs > 1 else GOES_ON)
        lines += (f"    {reason}" for reason in breaks)
    if tried:
        kept, *others = tried
        lines.append(f"  kept, as measured on the examples: {kept}; beside {', '.join(map(str, others))}")
    if alone.called >= 0:
        lines.append("  calls no larger than the example run as they are, because the model itself was measured to be faster")
    elif alone.trained >= 0:
        lines.append(
            "  in training, calls no larger than the example run as they are, for they are too short for guards to pay"
        )
    graphed = [executable for executable, _ in pieces if isinstance(executable, Graphed)]
    executables = [executable.plainly if isinstance(executable, Graphed) else executable for executable, _ in pieces]
    if graphed:
        lines.append(f"  CUDA graphs: {sum(map(len, (kinds for each in graphed for kinds in each.kinds.values())))} captured")
    lines += _backward_lines([each for each in executables if isinstance(each, Training)])
    lines += _compiled_lines([each for each in executables if isinstance(each, Compiled)])
    lines += (f"  a program for each size, for with sizes that vary {reason}" for reason in dict.fromkeys(fixed))
    lines += (f"  runs as it is: {reason}" for reason in dict.fromkeys(failures))
    return "\n".join(lines)


def _backward_lines(asked: Collection[Training]) -> list[str]:
    """Who runs the backward of programs that were asked to have it on lanes."""
    texts = {None: "on lanes, if the first call that records gradients shows that it can", "": "on the lanes of the forward"}
    reasons = dict.fromkeys(each.reason for each in asked)
    return [f"  backward: {texts.get(why, f'on one thread, because {why}')}" for why in reasons]


def _compiled_lines(asked: Collection[Compiled]) -> list[str]:
    """How much of the programs is compiled, of those that were asked to be, and why some of it is not."""
    if not asked:
        return []
    ops, functions = sum(len(each.plan.graph.ops) for each in asked), sum(len(each.bodies) for each in asked)
    laid = sum(each.laid for each in asked)
    counted = f"{functions} function{'s' if functions != 1 else ''}" + (
        f", {laid} on weights that are laid out" if laid else ""
    )
    one = ", which are one with all lanes in it" if all(each.joined is not None for each in asked) else ""
    lines = [f"  compiled: {sum(each.compiled_ops for each in asked)} of {ops} ops, in {counted}{one}"]
    return [*lines, *(f"    not compiled: {reason}" for reason in dict.fromkeys(why for each in asked for why in each.reasons))]
