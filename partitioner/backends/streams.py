"""Accelerator lanes on streams, issued by the caller's thread; further CPU lanes on workers, as in `threads`.

    caller's stream (lane 0)   record e0 . t0 ................ wait e1 . t2
    side stream     (lane 1)   wait e0 ........ t1 . record e1

Lane 0 is the caller's current stream on the first device, so what the caller did before is done before, and what the caller
does next comes after. Streams and events are kept and used again.

Memory between streams is safe by construction: a value is freed on the lane that allocated it, at a point that comes after
every reader (`lower.frees`), so the block can only be reused after that. Two things leave the program's hands, and
those are told to the allocator with `record_stream`: outputs made on a side stream, and, while gradients are recorded, values
read on another lane than their own, which autograd may save and let go of before that lane's backward has run.

Copies towards the CPU block until the data is there. Copies from the CPU may be asynchronous: whoever writes the source next
waits for an event behind the copy, because the hazard rule says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from partitioner.backends.bodies import Body
from partitioner.backends.codegen import Code
from partitioner.backends.nodes import move, results
from partitioner.backends.probe import pair_works
from partitioner.backends.returned import as_given, brought, marked, write_back
from partitioner.backends.threads import Launch, Threads
from partitioner.ir.graph import LANDED, Graph
from partitioner.ir.plan import Plan
from partitioner.model.modes import in_mode


class Hardware:
    """What `StreamLaunch` asks of torch; tests put a recorder in its place. Streams and events are kept for reuse."""

    def __init__(self) -> None:
        self.side: dict[tuple[str, int], torch.Stream] = {}
        self.spare: dict[str, deque[torch.Event]] = {}  # a deque, for callers may be on several threads

    def current_stream(self, device: str) -> torch.Stream:
        """The caller's stream on ``device``."""
        return torch.accelerator.current_stream(torch.device(device))

    def side_stream(self, device: str, index: int) -> torch.Stream:
        """The ``index``-th side stream of ``device``."""
        key = (device, index)
        if key not in self.side:
            self.side[key] = torch.Stream(device=device)
        return self.side[key]

    def set_stream(self, stream: torch.Stream) -> None:
        """Issue what follows on ``stream`` and its device."""
        torch.accelerator.set_stream(stream)

    def current_device(self) -> int:
        """The index of the caller's device."""
        return torch.accelerator.current_device_index()

    def set_device(self, index: int) -> None:
        """Make a device the current one, on whichever of its streams."""
        torch.accelerator.set_device_index(index)

    def pair_works(self, source: str, target: str) -> bool:
        """Whether copies between two devices arrive intact; probed once per process."""
        return pair_works(source, target)

    def take_event(self, device: str) -> torch.Event:
        """An event nobody is using."""
        spare = self.spare.setdefault(device, deque())
        return spare.pop() if spare else torch.Event(device=device)

    def give_back(self, event: torch.Event) -> None:
        """Let others use an event again. A stream that waits for it keeps what was recorded."""
        self.spare[str(event.device)].append(event)


def is_capturing(stream: torch.Stream) -> bool:
    """Whether a stream is being captured. Before torch 2.12, only the current one of CUDA's could be asked."""
    ask = getattr(stream, "is_capturing", None)
    if ask is not None:
        return bool(ask())
    if stream.device.type != "cuda":
        return False
    if stream.device_index == torch.cuda.current_device() and stream == torch.accelerator.current_stream():
        return torch.cuda.is_current_stream_capturing()  # a caller's is asked for in every call, and mostly that
    form = {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}
    with torch.cuda.stream(torch.cuda.Stream(**form)):  # type: ignore[no-untyped-call]
        return torch.cuda.is_current_stream_capturing()


HARDWARE = Hardware()
_TRANSFER = -1  # index of the side stream on which copies leave a device
_CAPTURED = 1 << 20  # added to the index of side streams that are captured: other threads issue on the usual ones meanwhile


class StreamLaunch(Launch):
    """One call: the streams of its lanes, and events of both kinds. Lane 0 is an accelerator lane.

    Args:
        code: what is called.
        hosts: threads that issue it.
        plan: whose lanes and events.
        hardware: streams and events.
    """

    def __init__(self, code: Code, hosts: int, plan: Plan, hardware: Hardware) -> None:
        super().__init__(code, hosts)
        self.lanes, self.hardware = plan.program.lanes, hardware
        self.recorded: dict[int, torch.Event] = {}
        self.late: list[Any] = []
        self.reads: list[torch.Event] = []
        self.grad = torch.is_grad_enabled()
        accelerators = {number: lane.torch_device for number, lane in enumerate(self.lanes) if lane.kind != "cpu"}
        self.device = hardware.current_device()
        self.caller = {device: hardware.current_stream(device) for device in dict.fromkeys(accelerators.values())}
        self.captured = is_capturing(self.caller[self.lanes[0].torch_device])
        self.joined = {0}
        first = _CAPTURED if self.captured else 0
        self.streams = {
            number: self.caller[device] if number == 0 else hardware.side_stream(device, first + number)
            for number, device in accelerators.items()
        }
        self.now = self.streams[0]

    def enter(self) -> None:
        """Let lanes of other devices than the first start after what the caller has issued there, too.

        The program itself makes every lane start after lane 0.
        """
        for number, stream in self.streams.items():
            device = self.lanes[number].torch_device
            if device != self.lanes[0].torch_device:
                stream.wait_stream(self.caller[device])

    def end(self) -> None:
        """Let what the caller does next come after everything, on every device; give streams and events back.

        A device that has failed, or a capture that an op has ended, lets nothing be joined: then what the op said is raised.
        """
        try:
            self._join()
        except Exception:
            if self.error is None:
                raise
        finally:
            for stream in reversed(self.caller.values()):
                self.hardware.set_stream(stream)
            self.hardware.set_device(self.device)  # setting a stream sets its device, and the caller's may be none of ours
            super().end()

    def _join(self) -> None:
        """Let streams wait for each other.

        A host may write its memory at once, so it waits for copies that read it: from pinned memory they may still be going on.
        Side streams are everybody's. Memory of theirs that lane 0 was the last to read is given back when they have waited
        for it: another thread may issue on them at any moment.
        """
        for number, stream in self.streams.items():
            if number != 0 and (not self.captured or number in self.joined):  # a capture waits for nothing outside of it
                self.streams[0].wait_stream(stream)
        handed_over = self.late or self.error is not None  # a failed call's values die with its traceback
        if handed_over and not self.captured:  # memory of a graph is its own, and streams must end joined
            for number, stream in self.streams.items():
                if number != 0:
                    stream.wait_stream(self.streams[0])
        self.late.clear()
        for stream in self.caller.values():
            if stream is not self.streams[0]:
                stream.wait_stream(self.streams[0])
        while self.recorded:
            self.hardware.give_back(self.recorded.popitem()[1])
        while self.reads:
            self.reads[-1].synchronize()
            self.hardware.give_back(self.reads.pop())

    def use(self, lane: int) -> None:
        """Issue what follows on ``lane``'s stream."""
        self.now = self.streams[lane]
        self.hardware.set_stream(self.now)

    def record(self, event: int, lane: int) -> None:
        """Mark this point of the lane's stream, and let hosts that wait for the event go on."""
        if lane in self.streams:
            made = self.hardware.take_event(self.lanes[lane].torch_device)
            self.streams[lane].record_event(made)
            self.recorded[event] = made
        super().record(event, lane)

    def wait(self, event: int, lane: int) -> None:
        """Hold the lane's stream until the event; a CPU lane is held by the host.

        Event 0 is the caller's own: a CPU lane has nothing to wait for there, and `copy` waits for the caller's data.
        """
        super().wait(event, lane)
        made = self.recorded.get(event)
        if made is None:
            return
        if lane in self.streams:
            self.streams[lane].wait_event(made)
            self.joined.add(lane)
        elif event != 0:
            made.synchronize()

    def copy(self, value: Any, lane: int) -> Any:
        """Copy to the lane's device, leaving the source device on a stream of its own, so that none of its lanes is held.

        Between two accelerators whose copies do not arrive intact, the host stands in between.
        """
        device = self.lanes[lane].torch_device
        source = next((str(leaf.device) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)), "cpu")
        if source in self.caller and source != device:
            transfer = self.hardware.side_stream(source, _TRANSFER)
            self._after_the_caller(transfer, source)
            self.hardware.set_stream(transfer)
        if lane in self.streams:
            if source in self.caller and source != device and not self.hardware.pair_works(source, device):
                transfer.wait_stream(self.streams[lane])  # which a copy between accelerators does by itself
                value = move(value, "cpu")
            self.use(lane)
            moved = move(value, device, non_blocking=True)
            if source == "cpu" and moved is not value and not self.captured:
                read = self.hardware.take_event(device)
                self.now.record_event(read)
                self.reads.append(read)
            return moved
        result = move(value, device)
        self.hardware.set_stream(self.now)
        return result

    def _after_the_caller(self, transfer: torch.Stream, source: str) -> None:
        """Let copies start after what the caller has issued. What lanes have made, the reader's lane has waited for.

        On the first device the caller's stream is a lane: what that was given since, a copy has no reason to wait for.
        """
        began = self.recorded.get(0) if source == self.lanes[0].torch_device else None
        if began is None:
            transfer.wait_stream(self.caller[source])
        else:
            transfer.wait_event(began)

    def keep(self, value: Any, lane: int) -> None:
        """While gradients are recorded, tell the allocator that ``lane`` reads a value of another lane."""
        if self.grad:
            self._announce(value, self.streams[lane])

    def leave(self, result: list[Any]) -> None:
        """Tell the allocator that the caller goes on with the results on its own streams."""
        for leaf in result:
            device = str(leaf.device) if isinstance(leaf, torch.Tensor) else ""
            if device in self.caller:
                self._announce(leaf, self.caller[device])

    def _announce(self, value: Any, stream: torch.Stream) -> None:
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
                leaf.record_stream(stream)


class Streams(Threads):
    """Runs a plan's program on streams.

    Args:
        plan: what to run; its first lane is an accelerator's.
        compiled: a function for each task that is called as one, by the task's name.
        hardware: where streams and events come from.
    """

    accelerated = True

    def __init__(self, plan: Plan, compiled: Mapping[str, Body] | None = None, hardware: Hardware = HARDWARE) -> None:
        super().__init__(plan, compiled)
        self.hardware = hardware
        if sum(lane.kind != "cpu" for lane in plan.program.lanes) > 1:  # what several lanes read has gradients of their streams
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # torch's word for "that is meant"
        values = plan.program.by_name
        homes = (
            (number, name, values[name].torch_device) for number, name in enumerate(plan.graph.arguments) if name in values
        )
        self.homes = tuple((number, home, plan.graph.recorded.get(name)) for number, name, home in homes if home)
        self.in_arguments = tuple(_in_arguments(plan.graph))

    def __call__(self, arguments: Sequence[Any], *, in_order: bool = False) -> list[Any]:
        """Run the program; the graph's results. Inputs may lie anywhere."""
        moved = list(arguments)
        for position, home, mode in self.homes:
            with in_mode(mode):
                moved[position] = brought(arguments[position], home)
        marks = marked(arguments, moved, self.plan.graph.written_arguments)
        found = super().__call__(moved, in_order=in_order)
        write_back(arguments, moved, marks)
        if self.in_arguments:
            as_given(arguments, moved, found, self.in_arguments)
        return found

    def with_tasks(self, plan: Plan, compiled: Mapping[str, Body]) -> Streams:
        """The same of another plan, with functions for its tasks."""
        return type(self)(plan, compiled, self.hardware)

    def begin(self, code: Code, hosts: int) -> Launch:
        """What one call needs."""
        return StreamLaunch(code, hosts, self.plan, self.hardware)


def _in_arguments(graph: Graph) -> Iterator[int]:
    """Positions of the results that may lie in the memory of an argument of the call, and are not brought elsewhere."""
    arguments = {*graph.arguments}.difference(graph.states)
    for number, result in enumerate(results(graph)):
        name = getattr(result, "name", "")  # a constant has none
        op = graph.by_name.get(name)
        if name in arguments or (op and op.target != LANDED and arguments.intersection(op.storages)):
            yield number
