"""CUDA graphs where there is no CUDA: a tape in the place of `torch.cuda`, over the streams of `pretend`.

What a capture does on a GPU, and the tape likewise:

    issue          nothing is run: what existed before is as it was, what was made in it holds nothing (here: NaN)
    random         the generator has not moved
    streams        one joins by waiting for a captured event; it may wait for nothing else, and must be joined in the end
    the host       nothing may be read by it
    replay         the same kernels on the same addresses; versions are not counted up

Source: https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/cuda-graphs.html, "stream capture"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pretend
import pytest
import torch
from pretend import Event, World
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from partitioner.backends.cudagraphs import graphs
from partitioner.backends.cudagraphs.capturing import generated_line

PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class Stream(pretend.Stream):
    """A stream that can be captured, under the rules of a GPU."""

    tape: Tape | None = None

    def is_capturing(self) -> bool:
        return self.tape is not None

    def record_event(self, event: Event) -> None:
        super().record_event(event)
        event.tape = self.tape  # type: ignore[attr-defined]

    def wait_event(self, event: Event) -> None:
        self._join(getattr(event, "tape", None))
        super().wait_event(event)

    def wait_stream(self, other: pretend.Stream) -> None:
        self._join(getattr(other, "tape", None))
        super().wait_stream(other)

    def _join(self, tape: Tape | None) -> None:
        if self.tape is not None and tape is not self.tape:
            raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
        if self.tape is None and tape is not None:
            self.tape = tape
            tape.streams.append(self)


def reads(func: Any) -> bool:
    """Whether the host has to know what an op has computed."""
    return func is torch.ops.aten._local_scalar_dense.default or torch.Tag.dynamic_output_shape in func.tags


class Watch(TorchDispatchMode):
    """Notes what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads(func) and (line := generated_line()):
            self.found.append(line)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """What is issued while it is on, and how to do it again on the same memory."""

    def __init__(self, recorder: Recorder, stream: Stream) -> None:
        super().__init__()
        self.recorder, self.stream, self.streams = recorder, stream, [stream]
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.made: dict[int, Tensor] = {}
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self._issue(func, args, kwargs or {})

    def _issue(self, func: Any, args: Any, kwargs: Any) -> Any:
        if reads(func):
            raise RuntimeError(PERMITTED)
        given = tensors_in((args, kwargs))
        for tensor in given:
            if address(tensor) not in self.made:
                self.before.setdefault(address(tensor), (raw(tensor), raw(tensor).clone()))
        result = func(*args, **kwargs)
        known = {address(tensor) for tensor in given}
        for tensor in tensors_in(result):
            if address(tensor) not in known:
                self.made[address(tensor)] = raw(tensor)
        if not func.__name__.startswith(("empty", "new_empty", "detach", "alias", "view")):
            self.calls.append((func, args, kwargs, result))
        return result

    def finish(self) -> None:
        """Nothing was run."""
        for tensor, value in self.before.values():
            tensor.copy_(value)
        for tensor in self.made.values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        for stream in self.streams:
            joined = self.stream.clock.get(stream.name, 0) >= stream.clock.get(stream.name, 0)
            stream.tape = None
            if not joined:
                raise RuntimeError("CUDA error: capturing stream has unjoined work")

    def replay(self) -> None:
        """Do it again."""
        self.recorder.log.append(f"replay {self.recorder.tapes.index(self)} on {self.recorder.current().name}")
        touched = [tensor for tensor, _ in self.before.values()]
        world = self.recorder.world
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                args, kwargs = tree_map_only(Tensor, raw, (args, kwargs))
                given = {address(tensor) for tensor in tensors_in((args, kwargs))}
                for target, source in zip(tensors_in(result), tensors_in(func(*args, **kwargs)), strict=True):
                    if address(target) not in given:
                        raw(target).copy_(source)
        for tensor in touched:
            tensor.place = self.recorder.device  # type: ignore[attr-defined]
        world.call("a replay", writes=touched)


def raw(tensor: Tensor) -> Tensor:
    """The same memory, of which nobody counts writes."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data.as_subclass(Tensor)


def address(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage().data_ptr() or -id(tensor)


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Recorder:
    """Takes the place of `backends.capturing.Cuda`; ``log`` is what torch.cuda would have been asked."""

    kind = "lazy"

    def __init__(self, world: World, device: str = "lazy:0") -> None:
        self.world, self.device, self.hardware = world, device, world.hardware
        self.log: list[str] = []
        self.tapes: list[Tape] = []
        self.pools = 0

    def current(self) -> pretend.Stream:
        return self.world.current(self.device)

    def is_capturing(self, device: str) -> bool:
        return self.current().is_capturing()

    def keeps_casts(self) -> bool:
        return torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()

    def pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def capture(self, device: str, pool: int) -> Iterator[Tape]:
        assert device == self.device and not self.current().is_capturing()
        self.log.append(f"capture {len(self.tapes)} in pool {pool}")
        self.synchronize()
        before, state = self.current(), torch.get_rng_state()
        stream = self.world.stream(f"{device}/capture", device)
        tape = stream.tape = Tape(self, stream)
        self.hardware.set_stream(stream)
        self.tapes.append(tape)
        try:
            with tape:
                yield tape
        finally:
            self.hardware.set_stream(before)
            torch.set_rng_state(state)
            with torch.no_grad():
                tape.finish()
            self.synchronize()  # nothing ran: whoever comes later is not in its way

    def synchronize(self) -> None:
        """The host comes after everything."""
        for stream in list(self.world.streams.values()):
            self.world.order(self.world.host(), stream.clock)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        with Watch() as watch:
            yield watch.found

    def room(self, like: Tensor, device: str) -> Tensor:
        made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        made.place = device  # type: ignore[attr-defined]
        return made

    def alias(self, tensor: Tensor) -> Tensor:
        found = raw(tensor)
        found.place = str(tensor.device)  # type: ignore[attr-defined]
        return found

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        self.world.call("a copy", reads=[one for one in sources if hasattr(one, "place")])
        self.world.call("a copy", writes=[one for one in targets if hasattr(one, "place")])

    def announce(self, tensors: Sequence[Tensor], device: str) -> None:
        self.log.append(f"announce {len(tensors)}")


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A world with a recorder, for the length of a test."""
    monkeypatch.setattr(pretend, "Stream", Stream)
    with pretend.pretending(monkeypatch) as world:
        recorder = Recorder(world)
        monkeypatch.setattr(graphs, "CUDA", recorder)
        yield recorder
