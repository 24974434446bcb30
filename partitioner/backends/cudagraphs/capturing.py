"""What capturing asks of torch.cuda, and how its failure is told."""

from __future__ import annotations

import linecache
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from partitioner.backends.bodies import Body
from partitioner.backends.streams import HARDWARE, is_capturing
from partitioner.errors import PartitionerError
from partitioner.ir.plan import Plan

_ONE = threading.RLock()
"""Held while something is captured, for torch allows one capture at a time, and while what a whole process has is changed."""


class CaptureError(PartitionerError):
    """A call cannot be captured as a CUDA graph, or its graph replayed. Says what stands in the way."""


class Cuda:
    """What capturing asks of torch; tests put a recorder in its place."""

    kind = "cuda"
    hardware = HARDWARE

    def __init__(self) -> None:
        self.streams: dict[str, torch.cuda.Stream] = {}

    def is_capturing(self, device: str) -> bool:
        """Whether the caller's stream is being captured."""
        return is_capturing(self.hardware.current_stream(device))

    def keeps_casts(self) -> bool:
        """Whether the caller is under an autocast that keeps the weights that it has cast."""
        return torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled()

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """A block of which the waits for the device are noted, each by the line of generated code.

        A capture that fails leaves torch's allocator and generators in the middle of it, so better none is begun.
        Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
        """
        found: list[str] = []
        thread = threading.get_ident()
        with _ONE, warnings.catch_warnings():
            before, show = torch.cuda.get_sync_debug_mode(), warnings.showwarning

            def noted(message: Warning | str, *rest: Any) -> None:
                if "synchroniz" not in str(message).lower():
                    show(message, *rest)
                elif threading.get_ident() == thread and (line := generated_line()):  # arguments are copied in beforehand
                    found.append(line)

            warnings.filterwarnings("always", message=".*[Ss]ynchroniz")
            warnings.showwarning = noted  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def _stream(self, device: str) -> torch.cuda.Stream:
        """The stream on which a device is captured."""
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self.streams[device]

    def pool_handle(self) -> Any:
        """A name for memory that captures take theirs from."""
        return torch.cuda.graph_pool_handle()

    @contextmanager
    def capture(self, device: str, pool: Any) -> Iterator[Any]:
        """A block that is captured and not run. What other threads do meanwhile is their own affair.

        Workspaces of cuBLAS are dropped on both sides: those that are made in here belong to the graph.
        """
        stream = self._stream(device)
        graph = torch.cuda.CUDAGraph()
        with _ONE, torch.cuda.device(device):
            before = torch.cuda.current_stream()
            torch._C._cuda_clearCublasWorkspaces()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    yield graph
                    for side in list(self.hardware.side.values()):  # autograd may leave one that nothing waits for
                        if is_capturing(side):
                            self.hardware.current_stream(device).wait_stream(side)
            finally:  # torch does not put the stream back if the capture has failed
                torch.cuda.set_stream(before)
                torch._C._cuda_clearCublasWorkspaces()

    def room(self, like: Tensor, device: str) -> Tensor:
        """Memory for a tensor of the same form."""
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)

    def alias(self, tensor: Tensor) -> Tensor:
        """The same memory, with a history and a count of writes of its own."""
        return tensor.data

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Copy tensor by tensor, with few kernels: one for many tensors of one dtype."""
        groups: dict[tuple[torch.dtype, torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
        for target, source in zip(targets, sources, strict=True):
            some = groups.setdefault((target.dtype, source.dtype, source.device), ([], []))
            some[0].append(target)
            some[1].append(source)
        for those, from_these in groups.values():
            torch._foreach_copy_(those, from_these)

    def announce(self, tensors: Sequence[Tensor], device: str) -> None:
        """Tell the allocator that the caller goes on with tensors that were made on streams of a capture."""
        for tensor in tensors:
            tensor.record_stream(self.hardware.current_stream(device))


CUDA = Cuda()


class Pool:
    """Memory that captures share which never run at once, and the point after which the next one may run.

    Args:
        cuda: who captures.
        device: on which they run.
    """

    def __init__(self, cuda: Cuda, device: str) -> None:
        self.cuda, self.device, self.handle = cuda, device, cuda.pool_handle()
        self.done: Any = None

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """A block that comes after the one before, on whichever stream that was."""
        stream = self.cuda.hardware.current_stream(self.device)
        if self.done is None:
            self.done = self.cuda.hardware.take_event(self.device)
        else:
            stream.wait_event(self.done)
        yield
        stream.record_event(self.done)


NEXT = ". Leave cuda_graphs out for this model, or change that in its forward"
"""What to do about something that cannot be captured."""


def generated_line() -> str:
    """The line of generated code that this thread is in, which tells op, module and source; ``""`` if it is in none.

    A compiler is in none, although one calls it: it may wait for the device, once, as what it makes does not.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not Body.prepare.__code__:
        if frame.f_code.co_filename.startswith("<partitioner"):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if "=" in line:
                return line
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextmanager
def explained(plan: Plan) -> Iterator[None]:
    """A block in which whatever a capture fails with is told as what it is, with the op in which it happened."""
    try:
        yield
    except (PartitionerError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # CUDA, or the op that asked for what a capture may not do
        chain = list(_causes(error))
        cause = next((one for one in reversed(chain) if getattr(one, "__notes__", ())), error)
        where = " ".join(getattr(cause, "__notes__", ()))
        what = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise CaptureError(
            f"{plan.graph.name} cannot be captured as a CUDA graph{f', {where}' if where else ''}: {what}{NEXT}"
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__
