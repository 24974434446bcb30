"""From Runs to a whole program: copies, events, frees. Each pass is a function from Program to Program.

    insert_copies   a value read on another device is copied there, once per device
    insert_syncs    what the hazard rule orders across lanes is ordered by an event
    prune_waits     what happens-before already knows need not be waited for
    insert_frees    a value is given up where its home lane knows that every reader is done

They run in this order; `insert_frees` needs the waits to be final, for it adds none.
"""

from __future__ import annotations

from collections.abc import Callable

from partitioner.ir.program import Program
from partitioner.lower.copies import insert_copies
from partitioner.lower.frees import insert_frees
from partitioner.lower.syncs import insert_syncs, prune_waits

Lowering = Callable[[Program], Program]
LOWERINGS: tuple[Lowering, ...] = (insert_copies, insert_syncs, prune_waits, insert_frees)


def lowered(program: Program) -> Program:
    """Runs alone, as a whole program."""
    for lowering in LOWERINGS:
        program = lowering(program)
    return program
