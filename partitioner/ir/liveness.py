"""How much memory a program's values take, at worst."""

from __future__ import annotations

from collections import defaultdict

from partitioner.ir.program import Free, Program, outputs_of


def peak_bytes(program: Program) -> dict[str, tuple[int, int]]:
    """The most bytes of live values on each torch device, and the instruction at which that is, in issue order.

    A storage lives from the first value that has it to the last Free of one. Inputs belong to the caller and are left out,
    and so are temporaries inside of tasks, which are not values.
    """
    size: defaultdict[str, int] = defaultdict(int)
    for value in program.values:
        for storage in value.storages:
            size[storage] = max(size[storage], value.bytes)
    holders: defaultdict[str, int] = defaultdict(int)
    live: defaultdict[str, int] = defaultdict(int)
    peak: dict[str, tuple[int, int]] = {}
    foreign = {storage for name in program.inputs if name in program.by_name for storage in program.by_name[name].storages}
    for index, item in enumerate(program.instructions):
        gone = (item.value,) if isinstance(item, Free) else ()
        for names, change in ((outputs_of(item), 1), (gone, -1)):
            for value in (program.by_name[name] for name in names if name in program.by_name):
                for storage in value.storages:
                    before, holders[storage] = holders[storage], holders[storage] + change
                    if storage not in foreign and (before == 0) != (holders[storage] == 0):
                        live[value.torch_device] += change * size[storage]
                if live[value.torch_device] > peak.get(value.torch_device, (0, -1))[0]:
                    peak[value.torch_device] = (live[value.torch_device], index)
    return peak
