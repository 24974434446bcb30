"""What `partition` gives: the model, with a forward that runs through programs.

    original   Towers              {weights, buffers, submodules, hooks, attributes}   one dictionary,
    parallel   Parallel[Towers] ---^                                                   shared

A `Parallel` is an instance of a class derived from the model's, and its attributes are the model's, in the very same
dictionary. So there is nothing to rename and nothing to keep in step: keys, ties, hooks, ``train()``, whatever else the
model's class defines. Only calls differ: they go through the programs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from partitioner.errors import PartitionerError, PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program
from partitioner.runtime.methods import Method, methods_with_parts
from partitioner.runtime.programs import Programs


class Shown:
    """A read-only attribute that gives way to one that the model has under the same name."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        name = self.function.__name__
        held = (instance.__dict__.get(part, {}) for part in ("_parameters", "_buffers", "_modules"))
        for part in held:
            if name in part:
                return part[name]
        return self.function(instance)


def _of_the_model(name: str) -> property:
    """A method of the model, which has no attributes to show: its buffer may be called ``plan``, or ``graph``."""
    return property(lambda parallel: getattr(parallel._partitioner_programs.original, name))


class Parallel(nn.Module):
    """A partitioned model, made by `partition` and not by hand: an instance of a class derived from the model's own.

    All that the model has it has, too, by the same names; only calls go through programs. What was made of it can be looked at,
    under names that give way to the model's where that has such, too.

    Example:
        >>> from partitioner import partition
        >>> parallel = partition(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["cpu"], example_inputs=torch.ones(2, 4))
        >>> isinstance(parallel, nn.Sequential), list(parallel.state_dict()), len(parallel.graph.ops)
        (True, ['0.weight', '0.bias'], 2)
    """

    _partitioner_programs: Programs
    _partitioner_class: type
    """The class of this one module; another one if torch has derived one of it since."""

    def __init_subclass__(cls, **_options: Any) -> None:
        """The model's class is told of classes that users derive from it, and not of those that are made here."""

    @Shown
    def original(self) -> nn.Module:
        """The model that was given, with its own forward."""
        return self._partitioner_programs.original

    @Shown
    def plan(self) -> Plan:
        """The plan of the program that ran last; before the first call, the first one."""
        found = self._partitioner_programs.plan
        if found is None:
            name = type(self._partitioner_programs.original).__name__
            raise PartitionerError(
                f"{name} has no plan yet: torch.fx cannot see it. Call it once, or pass example_inputs=(...)."
            )
        return found

    @Shown
    def graph(self) -> Graph:
        """The traced model: ops, accesses, levels."""
        return self._programs_plan().graph

    @Shown
    def dag(self) -> Any:
        """The ops as a `networkx.DiGraph`."""
        return self._programs_plan().graph.dag

    @Shown
    def placement(self) -> Assignment:
        """Where every task runs, and why."""
        return self._programs_plan().placement

    @Shown
    def program(self) -> Program:
        """The verified instructions."""
        return self._programs_plan().program

    @Shown
    def code(self) -> str:
        """The generated source; the program, as long as nothing was emitted."""
        piece = self._partitioner_programs.shown
        return str(self._programs_plan().program) if piece is None else piece.executable.code

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__dict__":  # it is the model's
            object.__setattr__(self._partitioner_programs.original, name, value)
        if name == "__class__":
            _leave_lanes(type(self), value, self._partitioner_programs)
        super().__setattr__(name, value)

    def _programs_plan(self) -> Plan:
        plan: Plan = Parallel.__dict__["plan"].function(self)
        return plan

    def _apply(self, fn: Callable[..., Any], *recurse: Any, **named: Any) -> Parallel:
        devices = {tensor.device for tensor in (*self.parameters(), *self.buffers())}
        for device in devices:
            wanted = _destination(fn, device)
            if wanted != device:
                raise PlacementError(_cannot_move(self, device, wanted))
        super()._apply(fn, *recurse, **named)  # type: ignore[no-untyped-call]  # a model's own may take ``fn`` alone
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Parallel:
        if type(self)._partitioner_class is not type(self):
            memo[id(self)] = other = object.__new__(type(self))
            object.__setattr__(other, "__dict__", copy.deepcopy(self.__dict__, memo))
            return other
        memo[id(self)] = twin = parallel_of(self._partitioner_programs)  # what the model holds may hold this module
        return parallel_of(self._partitioner_programs.twin(copy.deepcopy(self._partitioner_programs.original, memo)), twin)

    def __copy__(self) -> Parallel:
        return parallel_of(self._partitioner_programs.twin(copy.copy(self._partitioner_programs.original)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PartitionerError(
            "a partitioned module is not pickled: generated code and streams do not travel. Save parallel.state_dict(), "
            "build the model again, call partition() on it, and load the state_dict."
        )

    def __prepare_scriptable__(self) -> Any:
        """What `torch.jit.script` asks for."""
        raise PartitionerError(
            "a partitioned module is not scripted: TorchScript compiles the source of forward, which says nothing of lanes. "
            'Script parallel.original, or take Python out of lanes with partition(..., compile_tasks="torchscript").'
        )

    def __repr__(self) -> str:
        return self._partitioner_programs.summary()


for _name in ("register_buffer", "register_parameter", "add_module"):
    setattr(Parallel, _name, _of_the_model(_name))


def parallel_of(programs: Programs, parallel: Parallel | None = None) -> Parallel:
    """A module whose calls go through ``programs``; one that is there already, of the same class of model, if it is given."""
    original, given = programs.original, programs.given
    kind = type(original)
    forward = Method("forward", kind, original.forward, given)
    ours = {"_partitioner_programs": programs, "forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__}
    shown = [name for name, value in vars(Parallel).items() if isinstance(value, Shown)]
    theirs = {name: inspect.getattr_static(kind, name) for name in shown if hasattr(kind, name)}
    methods = {name: MethodType(method, original) for name, method in methods_with_parts(original)}
    routed = {name: Method(name, kind, method, given) for name, method in methods.items()}
    slots = {name: _slot(programs, name) for owner in kind.__mro__ for name in _slots(owner)}
    names = {**theirs, **slots, **routed, **ours, "__qualname__": f"Parallel[{kind.__qualname__}]"}
    made = _class_of_one(kind, names)
    made._partitioner_class = made
    parallel = object.__new__(made) if parallel is None else parallel
    object.__dict__["__class__"].__set__(parallel, made)  # the model's class may say that it is another one
    object.__setattr__(parallel, "__dict__", original.__dict__)
    return parallel


def _class_of_one(kind: type, names: dict[str, Any]) -> Any:
    """The class of one partitioned model. Who calls it, as in ``type(self)(...)``, gets a plain model of the model's class.

    What is written to it, as by a classmethod, is written to the model's class, where the model reads it. A ``class`` of the
    user's that is derived from it is derived from the model's, for its objects have no programs. Its instance holds nothing of
    its own, so a finaliser of the model's class is for the model alone to call.
    """

    def derive(meta: Any, name: str, bases: tuple[type, ...], held: dict[str, Any], **options: Any) -> Any:
        plain = tuple(kind if vars(base).get("_partitioner_class") is base else base for base in bases)
        if plain == bases or "__qualname__" not in held:  # torch's own call `type`, for this one module
            return super(metaclass, meta).__new__(meta, name, bases, held, **options)
        return type(kind)(name, plain, held, **options)

    def is_theirs(cls: type, name: str) -> bool:
        return vars(cls).get("_partitioner_class") is cls and not name.startswith("_partitioner")

    def put(cls: type, name: str, value: object) -> None:
        routed = vars(cls).get(name)
        if isinstance(routed, Method) and (value is routed or value is routed.call):  # it was replaced, and comes back
            value = routed.of_class
        setattr(kind, name, value) if is_theirs(cls, name) else super(metaclass, cls).__setattr__(name, value)

    def take(cls: type, name: str) -> None:
        delattr(kind, name) if is_theirs(cls, name) else super(metaclass, cls).__delattr__(name)

    rules = {"__call__": lambda _, *args, **kwargs: kind(*args, **kwargs), "__setattr__": put, "__delattr__": take}
    metaclass: Any = type(type(kind).__name__, (type(kind),), {**rules, "__new__": derive})
    plain: dict[str, Any] = {"__new__": lambda _, *args, **kwargs: kind.__new__(kind, *args, **kwargs)}
    finaliser = {"__del__": lambda _: None} if hasattr(kind, "__del__") else {}
    return metaclass(kind.__name__, (Parallel, kind), {**names, **plain, **finaliser})


def _leave_lanes(made: type[Parallel], other: type, programs: Programs) -> None:
    """A module gets another class. If torch has derived it of the one made here (parametrizations do), calls run as they are.

    Raises:
        PlacementError: it is a class of the user's, and with state on several devices nothing can run as it is.
    """
    if other is made._partitioner_class:
        return
    kind = type(programs.original)

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise PlacementError(
            f"{kind.__name__} was given another class, and its state lies on several devices; do that before partition()"
        )

    if not issubclass(other, made) and not programs.on_one:
        refuse()
    for name in [name for name, value in vars(made).items() if isinstance(value, Method) and issubclass(other, made)]:
        setattr(other, name, getattr(kind, name) if programs.on_one else refuse)


def _slots(owner: type) -> tuple[str, ...]:
    return (found,) if isinstance(found := vars(owner).get("__slots__", ()), str) else tuple(found)


def _slot(programs: Programs, name: str) -> property:
    """An attribute that lies in a slot of the model, and not in its dictionary."""
    return property(lambda _: getattr(programs.original, name), lambda _, value: setattr(programs.original, name, value))


def _destination(fn: Callable[..., Any], device: torch.device) -> torch.device | str:
    """Where ``fn``, which `nn.Module.to` and its like apply to every tensor, would put a tensor of ``device``."""
    try:
        return fn(torch.empty(0, device=device)).device  # type: ignore[no-any-return]
    except (AssertionError, RuntimeError) as error:  # torch was built without it, or it is not there
        return f"a device that fails with {str(error).partition(chr(10))[0]}"


def _cannot_move(module: Parallel, device: torch.device, wanted: torch.device | str) -> str:
    places = sorted({str(tensor.device) for tensor in (*module.parameters(), *module.buffers())})
    model = "parallel.original" if len(places) == 1 else 'parallel.original.to("cpu")'
    return (
        f"{type(module).__name__} is partitioned over {', '.join(places)}; moving what lies on {device} to {wanted} "
        f"would break its plan. Call partition({model}, devices=[...]) for other devices; dtypes may be changed."
    )
