"""Accelerators that are not there: CPU tensors that say they lie on ``lazy:1``, and streams that only write down who waits.

Every op really runs, on the CPU, at the moment at which it is issued, so results can be compared with eager. Beside that the
world keeps vector clocks of streams and host threads, and writes down which storages each op touched on which stream. So it can
tell afterwards what a GPU would have been free to reorder:

    actors       one for each stream, one for each host thread
    issue        what a host puts on a stream comes after what the host has done
    wait_*       a stream comes after another one, or after an event
    synchronize  a host comes after an event

What an op touches is seen on the tensors (storages, version counters), and not told by a graph. `World.faults` are pairs of
accesses that nothing orders, and memory that may be reused while somebody reads it.

`partition` itself runs here, from its tracer to its backend: `pretending` lets every tensor say where it lies, and lets state
be moved. A tensor that a caller holds is a plain one with a ``place``; a program gets aliases of it that are `Placed`. The
accelerators are called ``lazy:0``, ``lazy:1``: torch's type for its lazy backend is one of which a CPU build makes fakes.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorConverter
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from partitioner import driver, partition
from partitioner.backends import BACKENDS
from partitioner.backends.bodies import Body
from partitioner.backends.codegen import Code
from partitioner.backends.streams import StreamLaunch, Streams
from partitioner.frontend.capture import dynamo, refusal
from partitioner.frontend.capture.here import Watched
from partitioner.ir.plan import Plan
from partitioner.model.call import Call
from partitioner.model.state import all_state
from partitioner.runtime import module, moving
from partitioner.runtime.module import Parallel
from partitioner.spec import devices

Clock = dict[str, int]


def joined(one: Clock, other: Clock) -> Clock:
    """What either knows."""
    return {actor: max(one.get(actor, 0), other.get(actor, 0)) for actor in {**one, **other}}


# -- streams and events ----------------------------------------------------------------------------------------------


class Stream:
    """Stands for `torch.Stream`. ``clock[a]`` is how much of actor ``a`` has ended before what is issued here next."""

    def __init__(self, world: World, name: str, device: str) -> None:
        self.world, self.name, self.device, self.clock = world, name, torch.device(device), Clock()

    def wait_stream(self, other: Stream) -> None:
        self.world.order(self, other.clock)

    def wait_event(self, event: Event) -> None:
        assert event.clock is not None, f"{self.name} waits for an event that was never recorded"
        self.world.order(self, event.clock)

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event) -> None:
        assert not event.spare, "an event is recorded that was given back"
        event.clock = dict(self.clock)

    def __repr__(self) -> str:
        return self.name


class Event:
    """Stands for `torch.Event`."""

    def __init__(self, world: World, device: str) -> None:
        self.world, self.device, self.spare = world, torch.device(device), False
        self.clock: Clock | None = None

    def synchronize(self) -> None:
        assert self.clock is not None
        self.world.order(self.world.host(), self.clock)


class Host(Stream):
    """A thread that issues work, and runs ops on CPU tensors itself."""


class Recorder:
    """Takes the place of `backends.streams.Hardware`."""

    def __init__(self, world: World) -> None:
        self.world, self.made = world, 0
        self.spare: list[Event] = []
        self.broken: set[tuple[str, str]] = set()

    def current_stream(self, device: str) -> Stream:
        return self.world.current(device)

    def side_stream(self, device: str, index: int) -> Stream:
        return self.world.stream(f"{device}/{index}", device)

    def set_stream(self, stream: Stream) -> None:
        self.world.now[threading.get_ident(), str(stream.device)] = stream
        self.world.device[threading.get_ident()] = stream.device.index

    def current_device(self) -> int:
        return self.world.device[threading.get_ident()]

    def set_device(self, index: int) -> None:
        self.world.device[threading.get_ident()] = index

    def pair_works(self, source: str, target: str) -> bool:
        return (source, target) not in self.broken

    def take_event(self, device: str) -> Event:
        for event in self.spare:
            if str(event.device) == device:
                self.spare.remove(event)
                event.spare = False
                return event
        self.made += 1
        return Event(self.world, device)

    def give_back(self, event: Event) -> None:
        assert not event.spare, "an event is given back twice"
        event.spare = True
        self.spare.append(event)


# -- what happens ----------------------------------------------------------------------------------------------------


@dataclass
class Access:
    """One op's use of a storage."""

    actor: str
    tick: int
    clock: Clock
    write: bool
    what: str


@dataclass
class Storage:
    """One piece of memory: where it was allocated, who touched it, and who was announced to the allocator.

    It is kept: a tensor may be given other memory (`tensor.data = other`), and what came to lie at the old address seemed to be
    touched by all who had touched the old.
    """

    serial: int
    device: str
    allocated: str
    accesses: list[Access] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)
    tensors: int = 0
    memory: Any = None


class World:
    """Streams, clocks, and every access to every storage."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.streams: dict[str, Stream] = {}
        self.now: dict[tuple[int, str], Stream] = {}
        self.device: defaultdict[int, int] = defaultdict(int)
        self.alive: dict[int, Storage] = {}
        self.storages: list[Storage] = []
        self.seen: set[int] = set()
        self.references: dict[int, weakref.ref[Tensor]] = {}
        self.issued: list[tuple[str, str]] = []
        self.early: list[str] = []
        self.freed: defaultdict[str, list[Storage]] = defaultdict(list)
        self.watch_memory = True
        self.hardware = Recorder(self)
        self.made: list[WatchedStreams] = []

    def stream(self, name: str, device: str) -> Stream:
        return self.streams.setdefault(name, Stream(self, name, device))

    def host(self) -> Stream:
        name = f"host {threading.get_ident()}"
        return self.streams.setdefault(name, Host(self, name, "cpu"))

    def current(self, device: str) -> Stream:
        """The calling thread's stream on a device; the thread itself for the CPU."""
        if device == "cpu":
            return self.host()
        default = self.stream(f"{device}/caller", device)
        return self.now.get((threading.get_ident(), device), default)

    def order(self, later: Stream, clock: Clock) -> None:
        """What ``later`` does next comes after everything in ``clock``."""
        with self.lock:
            later.clock = joined(joined(later.clock, self.host().clock), clock)

    def note(self, actor: Stream, what: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """An op that ``actor`` runs."""
        with self.lock:
            clock = joined(actor.clock, self.host().clock)
            tick = clock.get(actor.name, 0) + 1
            actor.clock = {**clock, actor.name: tick}
            self.issued.append((actor.name, what))
            if self.watch_memory:
                self.early += self._reuse(actor.name, clock)
            for write, tensors in ((False, reads), (True, writes)):
                for tensor in tensors:
                    self.storage(tensor).accesses.append(Access(actor.name, tick, clock, write, what))

    def call(self, who: str, reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> None:
        """Somebody reads and writes tensors, each on the current stream of its device."""
        for tensor in (*reads, *writes):
            if isinstance(tensor, Tensor):
                _watch(self, [tensor], str(tensor.device))
                written = [tensor] if any(tensor is one for one in writes) else []
                self.note(self.current(str(tensor.device)), who, [tensor], written)

    def storage(self, tensor: Tensor) -> Storage:
        if key(tensor) not in self.alive:  # somebody has given it another one's memory (`tensor.data = other`)
            self.adopt(tensor, place_at(tensor) or "cpu")
        return self.alive[key(tensor)]

    def adopt(self, tensor: Tensor, device: str) -> None:
        """Begin to watch a tensor: its memory is given back when the last tensor on it is gone."""
        with self.lock:
            storage = self.alive.get(key(tensor))
            if storage is None:
                with torch._C.DisableTorchFunctionSubclass():
                    memory = tensor.untyped_storage()
                storage = Storage(len(self.storages), device, self.current(device).name, memory=memory)
                self.alive[key(tensor)] = storage
                self.storages.append(storage)
            storage.tensors += 1
            place = key(tensor)
            number = id(tensor)
            self.references[number] = weakref.ref(tensor, lambda _: self._gone(number, place, storage))

    def _gone(self, number: int, place: int, storage: Storage) -> None:
        with self.lock:
            self.references.pop(number, None)
            storage.tensors -= 1
            if storage.tensors == 0 and self.alive.get(place) is storage:
                del self.alive[place]
                self.freed[storage.allocated].append(storage)

    def _reuse(self, actor: str, known: Clock) -> Iterator[str]:
        """What is issued next on a stream may get any memory that was given back there. Who may still be reading it?"""
        for storage in self.freed.pop(actor, ()):
            for access in storage.accesses:
                told = access.actor in (actor, *storage.announced)
                if storage.device != "cpu" and not told and known.get(access.actor, 0) < access.tick:
                    yield f"{actor} may use memory again that {access.what} on {access.actor} may still be using"

    def faults(self) -> list[str]:
        """Pairs of accesses, at least one of them a write, that nothing orders; and memory given back too early."""
        return [*(fault for storage in self.storages for fault in _unordered(storage)), *self.early]


def _unordered(storage: Storage) -> Iterator[str]:
    for number, later in enumerate(storage.accesses):
        for earlier in storage.accesses[:number]:
            conflict = (earlier.write or later.write) and earlier.actor != later.actor
            if conflict and later.clock.get(earlier.actor, 0) < earlier.tick:
                yield f"{earlier.what} on {earlier.actor} and {later.what} on {later.actor} both touch storage {storage.serial}"


def key(tensor: Tensor) -> int:
    """What tells storages apart while they are alive."""
    with torch._C.DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage()._cdata)


# -- tensors ---------------------------------------------------------------------------------------------------------

THERE = 4
"""How many accelerators there are."""

WORLD: list[World] = []
"""The world in which tensors live now, if there is one."""


LOOKS = frozenset(
    """__get__ __set__ __repr__ detach requires_grad_ is_inference is_complex
    size stride storage_offset as_strided expand""".split()
)
"""Functions of torch that touch no memory."""


class Placed(Tensor):
    """A CPU tensor that says it lies somewhere else."""

    place: str

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(self.place)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        return _move(self, *args, **kwargs)

    def copy_(self, source: Tensor) -> Tensor:  # type: ignore[override]
        return _fill(self, source) if self.place != place_of(source) else super().copy_(source)

    def cpu(self) -> Tensor:  # type: ignore[override]
        return _move(self, "cpu")

    def detach_(self) -> Tensor:
        """An alias is a view, which torch does not detach in place; where nothing has a history, there is nothing to do."""
        return super().detach_() if self.requires_grad else self

    def record_stream(self, stream: Any) -> None:
        WORLD[-1].storage(self).announced.add(stream.name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not WORLD or getattr(func, "__name__", "") in LOOKS:
            return _tagged(_plain(func, *args, **kwargs), place_of((args, kwargs)), WORLD[-1] if WORLD else None)
        return _issue(lambda: _plain(func, *args, **kwargs), func, args, kwargs)


def put_at(tensor: Tensor, place: str) -> None:
    """Let a tensor lie somewhere, with its memory: autograd gives back what it has saved as another tensor over that."""
    tensor.place = place  # type: ignore[attr-defined]
    with torch._C.DisableTorchFunctionSubclass(), suppress(NotImplementedError):  # as functorch's have none
        if tensor.layout is torch.strided and not tensor.is_nested:
            tensor.untyped_storage().place = place  # type: ignore[attr-defined]


def place_at(tensor: Tensor) -> str | None:
    """Where a tensor lies, if anybody has put it there; in backward, where its memory was put."""
    place: str | None = getattr(tensor, "place", None)
    if place is not None or torch._C._current_graph_task_id() < 0 or type(tensor) is not Tensor:
        return place
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return getattr(tensor.untyped_storage(), "place", None) if strided else None


def place_of(tree: Any) -> str:
    """The one device of all tensors in a structure; a number in a CPU tensor may go anywhere, and what the engine makes."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    places = [place_at(leaf) for leaf in tensors if isinstance(leaf, Placed) or leaf.dim()]
    found = {place for place in places if place is not None}
    if not found or (None in places and torch._C._current_graph_task_id() < 0):
        found.add("cpu")
    if len(found) != 1:
        raise RuntimeError(f"an op mixes tensors of {', '.join(sorted(found))}")
    return found.pop()


def _issue(run: Callable[[], Any], func: Any, args: Any, kwargs: Any) -> Any:
    """Run an op, on the current stream of its tensors' device."""
    world, where = WORLD[-1], place_of((args, kwargs))
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        versions = [tensor._version if not tensor.is_inference() else 0 for tensor in given]
    _watch(world, given, where)
    result = _tagged(run(), where, world)
    with torch._C.DisableTorchFunctionSubclass():
        written = [
            tensor for tensor, old in zip(given, versions, strict=True) if not tensor.is_inference() and tensor._version != old
        ]
    written += _statistics(func, args, kwargs)
    known = {*map(key, given)}
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and key(leaf) not in known]
    world.note(world.current(where), getattr(func, "__name__", str(func)), given, [*written, *made])
    return result


def _statistics(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Batch norm writes its running statistics without a word, and without counting up their versions."""
    if func is not F.batch_norm or not (kwargs.get("training") or (len(args) > 5 and args[5])):
        return []
    return [value for value in (*args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")) if value is not None]


def _watch(world: World, tensors: list[Tensor], where: str) -> None:
    for tensor in tensors:
        reference = world.references.get(id(tensor))
        if reference is None or reference() is not tensor:
            world.adopt(tensor, getattr(tensor, "place", where))


def _tagged(result: Any, where: str, world: World | None) -> Any:
    """Let the tensors of a result lie where its op ran."""

    def tag(tensor: Tensor) -> Tensor:
        placed = tensor if isinstance(tensor, Placed) else tensor.as_subclass(Placed)
        put_at(placed, where)
        if world is not None:
            _watch(world, [placed], where)
        return placed

    return tree_map_only(Tensor, tag, result)


def _move(tensor: Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """`Tensor.to`: a copy between devices runs where CUDA runs it; anything else is an op like any other."""
    target = next((str(arg) for arg in args if isinstance(arg, str | torch.device)), str(kwargs.get("device", "")))
    source = place_at(tensor) or "cpu"
    if target in ("", source):
        args = tuple(arg for arg in args if not isinstance(arg, str | torch.device))
        kwargs.pop("device", None)
        if not args and not kwargs:
            return tensor
        return _issue(lambda: _plain(Tensor.to, tensor, *args, **kwargs), Tensor.to, (tensor, *args), kwargs)
    world = WORLD[-1]
    _watch(world, [tensor], source)
    moved = _tagged(_plain(Tensor.clone, tensor), target, world)
    _note_copy(world, tensor, source, moved, target, non_blocking)
    return moved


def _fill(target: Placed, source: Tensor) -> Tensor:
    """`Tensor.copy_` between devices, which runs where `Tensor.to` does."""
    world, place = WORLD[-1], place_of(source)
    _watch(world, [source], place)
    _plain(Tensor.copy_, target, source)
    _note_copy(world, source, place, target, target.place, False)
    return target


def _note_copy(world: World, old: Tensor, source: str, new: Tensor, target: str, non_blocking: bool) -> None:
    """It runs on the source's current stream, between accelerators after and before the target's."""
    stream = world.current(source if source != "cpu" else target)
    if "cpu" not in (source, target):
        world.order(stream, world.current(target).clock)
    world.note(stream, f"copy to {target}", [old], [new])
    if "cpu" not in (source, target):
        world.order(world.current(target), stream.clock)
    elif not non_blocking:
        world.order(world.host(), stream.clock)


def _plain(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


_AGAIN = (torch.as_tensor, torch.asarray)
"""Makers that a tensor may be given to, of which torch does not ask the tensor's own class."""


class Factories(TorchFunctionMode):
    """Lets functions that make tensors from nothing make them on devices that are not there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func is Tensor.to and WORLD and not isinstance(args[0], Placed):
            return _move(_tagged(args[0], "cpu", WORLD[-1]), *args[1:], **kwargs)
        if func in _AGAIN and WORLD and isinstance(args[0], Placed):
            return args[0].to(*args[1:], **kwargs)
        if given or not WORLD:
            return func(*args, **kwargs)
        where = str(torch.device(kwargs.pop("device", None) or "cpu"))
        made = _tagged(func(*args, **kwargs), where, WORLD[-1])
        WORLD[-1].note(
            WORLD[-1].current(where), func.__name__, [], [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        )
        return made


# -- partitioning ----------------------------------------------------------------------------------------------------


TWO = {"lazy:0": 1, "lazy:1": 1}
MIXED = {"lazy:0": 1, "cpu": 1}
"""Machines: the lanes of each device."""


def put(tensor: Tensor, where: str) -> Tensor:
    """A copy of a tensor on a device, as a caller holds it."""
    placed = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    put_at(placed, where)
    return placed


def spread(model: nn.Module, inputs: tuple[Any, ...], lanes: Mapping[str, int], **options: Any) -> Parallel:
    """``model`` on so many lanes of each device, on which every op is worth a lane of its own."""
    return partition(model, example_inputs=inputs, spec=spec(lanes), **options)


def slow(device: str) -> dict[str, float]:
    """Figures under which an op takes about a millisecond: of a CPU's lane to issue it, of an accelerator's to run it."""
    return {"overhead": 1e-3} if device.startswith("cpu") else {"overhead": 0, "bandwidth": 4e5}


def spec(lanes: Mapping[str, int], **caps: int) -> dict[str, Any]:
    """So many lanes on each device, where an op takes long and everything else takes no time."""
    devices = [{"device": name, "lanes": count, "handoff": 0, **slow(name)} for name, count in lanes.items()]
    for device in devices:
        device |= {"memory": caps[kind]} if (kind := str(device["device"]).replace(":", "")) in caps else {}
    links = [
        {"source": one, "target": other, "latency": 0, "bandwidth": 1e15} for one in lanes for other in lanes if one != other
    ]
    return {"devices": devices, "links": links, "grain": 1e-9}


class WatchedCall(StreamLaunch):
    """Tells the world what locks between host threads order."""

    def __init__(self, code: Code, hosts: int, plan: Plan, hardware: Any) -> None:
        super().__init__(code, hosts, plan, hardware)
        self.world: World = hardware.world
        self.marks: dict[int, Clock] = {}
        self.caller_host = self.world.host()
        self.hosts = {self.caller_host.name: self.caller_host}

    def record(self, event: int, lane: int) -> None:
        self.marks[event] = dict(self.world.host().clock)
        super().record(event, lane)

    def wait(self, event: int, lane: int) -> None:
        host = self.world.host()
        self.hosts[host.name] = host
        super().wait(event, lane)
        self.world.order(host, self.marks[event])

    def end(self) -> None:
        for host in list(self.hosts.values()):
            self.world.order(self.caller_host, host.clock)
        super().end()


class WatchedStreams(Streams):
    """The streams backend in a world of its own."""

    def __init__(self, plan: Plan, world: World, compiled: Mapping[str, Body] | None = None) -> None:
        super().__init__(plan, compiled, world.hardware)  # type: ignore[arg-type]
        self.world = world
        world.made.append(self)

    def with_tasks(self, plan: Plan, compiled: Mapping[str, Body]) -> WatchedStreams:
        return WatchedStreams(plan, self.world, compiled)

    def begin(self, code: Code, hosts: int) -> WatchedCall:
        return WatchedCall(code, hosts, self.plan, self.hardware)

    def __call__(self, arguments: Sequence[Any], *, in_order: bool = False) -> list[Any]:
        """The caller has just written the inputs."""
        given = [lent(value, self.world) if isinstance(value, Tensor) else value for value in arguments]
        named = dict(zip(self.plan.graph.arguments, given, strict=True))
        inputs = [value for name, value in named.items() if name not in self.plan.graph.states]
        self.world.call("the caller", writes=inputs)
        with Factories() if any(map(_makes, self.plan.graph.fx.nodes)) else nullcontext():
            results = super().__call__(given, in_order=in_order)
        own = {id(alias): value for alias, value in zip(given, arguments, strict=True) if isinstance(value, Tensor)}
        for alias, value in zip(given, arguments, strict=True):
            _share_again(alias, value)
        return [
            own[id(value)] if id(value) in own else taken(value, self.world) if isinstance(value, Tensor) else value
            for value in results
        ]


def _makes(node: torch.fx.Node) -> bool:
    """Whether an op makes a tensor from nothing, from numbers, or again of a tensor."""
    if node.target in _AGAIN:
        return True
    given = [value.meta.get("example_value") for value in node.all_input_nodes]
    made = isinstance(node.meta.get("example_value"), Tensor)
    return node.op == "call_function" and made and not any(isinstance(value, Tensor) for value in given)


def history_kept(tensor: Tensor) -> AbstractContextManager[object]:
    """Real devices have the very tensor, so whatever is made of it here has its history, under the caller's no_grad too."""
    return torch.enable_grad() if tensor.requires_grad else nullcontext()


def lent(tensor: Tensor, world: World) -> Tensor:
    """A caller's tensor as programs see it."""
    place = str(tensor.device)
    _watch(world, [tensor], place)
    with history_kept(tensor):
        return _tagged(tensor.as_subclass(Placed), place, world)  # type: ignore[no-any-return]


def _share_again(alias: Any, tensor: Any) -> None:
    """Give a caller's tensor the memory that a program has given its alias (`tensor.data = other`)."""
    with torch._C.DisableTorchFunctionSubclass():
        strided = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested
        if strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor) and key(alias) != key(tensor):
            tensor.data = alias.data.as_subclass(Tensor)


def taken(tensor: Tensor, world: World) -> Tensor:
    """A program's tensor as callers see it. What keeps its gradient, as a leaf does, is no alias."""
    if ((tensor.is_leaf and tensor.requires_grad) or tensor.retains_grad) and type(tensor) is Placed:
        tensor.__class__ = Tensor  # type: ignore[assignment]
        return tensor
    with torch._C.DisableTorchFunctionSubclass(), history_kept(tensor):
        given = tensor.as_subclass(Tensor)
    vars(given).update(vars(tensor))
    put_at(given, str(tensor.device))
    _watch(world, [given], str(tensor.device))
    return given


def _call_on(call: Call, device: str) -> Call:
    """Stands for `Call.on`."""
    away = {id(leaf): leaf for leaf in call.leaves if isinstance(leaf, Tensor) and str(leaf.device) != device}
    moved = {number: put(leaf, device) for number, leaf in away.items()} if device != "meta" else {}
    return _real_call_on(replace(call, leaves=tuple(moved.get(id(leaf), leaf) for leaf in call.leaves)), device)


_real_call_on = Call.on


def _move_together(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Stands for `runtime.moving._move_together`."""
    for tensor in tensors:
        put_at(tensor, str(device))


def _empty(size: Sequence[int], *strides: Sequence[int], device: torch.device, **options: Any) -> Tensor:
    """Stands for the two kernels of a device of which all that make tensors there are composed."""
    kinds = {key: value for key, value in options.items() if key in ("dtype", "memory_format") and value is not None}
    if device.index is None or device.index >= THERE:
        raise RuntimeError(f"there is no {device}")
    made = torch.empty_strided(size, *strides, **kinds) if strides else torch.empty(size, **kinds)
    put_at(made, str(device))
    return made


def _destination(fn: Callable[..., Any], device: torch.device) -> torch.device | str:
    """Stands for `runtime.module._destination`: who moves nothing leaves what lies nowhere where it is, too."""
    nowhere = torch.device("meta")
    return device if _destined(fn, nowhere) == nowhere else _destined(fn, device)


_destined = module._destination


def _device(tensor: Tensor) -> torch.device:
    """Stands for `torch.Tensor.device`, as far as Python asks for it."""
    place = None if _REAL.wanted else place_at(tensor)
    return _real_device(tensor) if place is None else torch.device(place)  # type: ignore[no-any-return]


_real_device = torch._C.TensorBase.device.__get__  # type: ignore[attr-defined]


class _Real(threading.local):
    """Whether tensors tell this thread where they really are."""

    wanted = False


_REAL = _Real()
_from_real = FakeTensorConverter.from_real_tensor


def _from_pretended(self: Any, mode: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Stands for `FakeTensorConverter.from_real_tensor`, which knows no places: a fake lies where its tensor does."""
    place, _REAL.wanted = place_at(tensor), True
    try:
        fake = _from_real(self, mode, tensor, *args, **kwargs)
    finally:
        _REAL.wanted = False
    if place is not None:
        fake.fake_device = torch.device(place)
    return fake


def _watched_in_places(scope: Any, root: nn.Module, whole: bool) -> tuple[Watched, Watched]:
    """Stands for `dynamo.watched`: torch's guards, which ask on which device a tensor lies, know no places."""
    (within, around), model = _watched(scope, root, whole), weakref.ref(root)
    places = _places(root)
    return (*within, lambda _: _places(model()) == places), around


_watched = dynamo.watched


def _places(root: nn.Module | None) -> dict[str, str]:
    assert root is not None, "it is being called"
    return {name: str(tensor.device) for name, tensor in all_state(root).items()}


@contextmanager
def pretending(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world for the length of a test."""
    WORLD.append(World())
    monkeypatch.setattr(FakeTensorConverter, "from_real_tensor", _from_pretended)
    monkeypatch.setattr(Tensor, "device", property(_device), raising=False)
    monkeypatch.setattr(devices, "_ACCELERATORS", (*devices._ACCELERATORS, "lazy"))
    monkeypatch.setattr(moving, "_move_together", _move_together)
    monkeypatch.setattr(module, "_destination", _destination)
    monkeypatch.setattr(Call, "on", _call_on)
    monkeypatch.setattr(dynamo, "watched", _watched_in_places)
    monkeypatch.setattr(refusal, "Together", nullcontext)  # out of programs, ops take what they are given
    monkeypatch.setattr(torch, "lazy", torch.cpu, raising=False)  # torch's word for what a device type can do
    monkeypatch.setattr(driver, "refuse_missing", lambda machine: None)
    monkeypatch.setitem(BACKENDS, "streams", lambda plan: WatchedStreams(plan, WORLD[-1]))
    kernels = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):
        kernels.impl(name, _empty, "Lazy")
    try:
        yield WORLD[-1]
    finally:
        WORLD.pop()
        kernels._destroy()
