"""Backends: a plan becomes something that can be called. A new one is a file of its own and a line here.

What a backend makes is called with the values of the graph's placeholders, state and inputs, and gives the graph's results.

    reference, threads, streams    an instruction at a time, or Python source for each thread that issues
    compiling/                     before that: a task's ops as one function
    cudagraphs/                    behind that: a program on one GPU as one launch
    backward/                      around that: a call and its backward, both on lanes
"""

from __future__ import annotations

from collections.abc import Callable

from partitioner.backends.executable import Executable
from partitioner.backends.reference import Reference
from partitioner.backends.streams import Streams
from partitioner.backends.threads import Threads
from partitioner.errors import SpecError
from partitioner.ir.machine import Machine
from partitioner.ir.plan import Plan
from partitioner.ir.words import one_of

BACKENDS: dict[str, Callable[[Plan], Executable]] = {
    "reference": Reference,
    "streams": Streams,
    "threads": Threads,
}


def backend_for(name: str, machine: Machine) -> Callable[[Plan], Executable]:
    """The backend of a name on a machine. ``auto`` is streams where there is an accelerator, and threads otherwise.

    Raises:
        SpecError: nothing is called that, or it is for other devices.
    """
    fits, other = ("streams", "threads") if any(device.kind != "cpu" for device in machine.devices) else ("threads", "streams")
    name = one_of("backend", name, ("auto", *BACKENDS))
    if name == other:
        devices = ", ".join(machine.places)
        kind = "accelerators" if name == "streams" else "CPU lanes only"
        raise SpecError(f"backend {name!r} is for {kind}, the plan is for {devices}. Leave backend out, and {fits!r} is taken.")
    return BACKENDS[fits if name == "auto" else name]
