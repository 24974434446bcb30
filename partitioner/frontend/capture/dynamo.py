"""The way in: torch.compile's tracer, with its guards, and a backend of ours behind it.

`compiled` gives a function that is called as the model is. Dynamo runs the model's Python once on fake tensors, hands each
graph that it finds to ``receive``, and afterwards calls what ``receive`` gave, under C++ guards on everything that the
Python looked at: attributes, configs, globals, hooks, modes, shapes, strides, classes. A call that no guard accepts is
traced again. A frame that cannot be traced runs as it is (`frames.py`); only if that went well several times is it left
alone from then on, and the reason noted.
"""

from __future__ import annotations

import linecache
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import reset_code, set_code_exec_strategy, set_eval_frame
from torch._C._functorch import get_dynamic_layer_stack_depth, pop_dynamic_layer_stack_and_undo_to_depth
from torch._dynamo import convert_frame, eval_frame
from torch._dynamo.eval_frame import _callback_from_stance, cached_backends
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch.distributions import Distribution

from partitioner.frontend.capture.amended import amended
from partitioner.frontend.capture.fakes import forget
from partitioner.frontend.capture.frames import ASKED, Callback, Convert
from partitioner.frontend.capture.here import HERE, Watched, reason_of
from partitioner.frontend.capture.owner import AsItIs, Owner, Untraceable
from partitioner.frontend.capture.python.leaner import untraced
from partitioner.frontend.capture.python.numbers import as_numbers, given_numbers
from partitioner.frontend.capture.refusal import own_error, refusal, refuse_no_tracer
from partitioner.frontend.capture.sameness import these_modules, watched
from partitioner.frontend.capture.tensors.checks import check_sizes, checked
from partitioner.frontend.capture.tensors.gradients import asking
from partitioner.model.functions import names_in
from partitioner.model.source import is_installed

TRIES = 3
"""Calls after which a frame that cannot be traced, and runs well as it is, is left alone."""

_TELLS = frozenset(
    "print input open write log logger logging info debug error warn warning warnings ops exec eval next".split()
)
"""Names by which code reaches somebody, or takes what cannot be put back."""

_TORCHS_PATCHES: Any = eval_frame.TorchPatcher.patch.__wrapped__

_numbers = count()


@dataclass(frozen=True, eq=False)
class Found:
    """A graph that Dynamo found.

    Args:
        module: the graph, over torch-level functions; every tensor that it reads is a placeholder.
        inputs: the real values of the placeholders, in order.
        code: of the traced function, as it was written.
        paths: qualified name of each module that is a local variable of the traced frame, by the variable's name.
        reason: what Python goes on after, with the line: why the graph ends where it does, or that it is all of another
            function, called by code that cannot be traced; ``""`` if forward returns.
        first: whether the call begins with it.
        caught: whether code of the model's may catch or say what its ops raise. Dynamo knows of what they raise on fakes alone.
        drawn: whether numbers of `random` are drawn before it runs.
        sets: whether Python's objects are changed when it has run.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    code: CodeType | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    first: bool = False
    caught: bool = False
    drawn: bool = False
    sets: bool = False

    @property
    def function(self) -> str:
        """Name of the traced function."""
        return self.code.co_name if self.code else ""


Receive = Callable[[Found], Callable[..., Sequence[Any]]]
Home = Callable[[], str | None]


def compiled(
    root: nn.Module,
    receive: Receive,
    *,
    method: str = "forward",
    of_class: bool = False,
    whole: bool = False,
    home: Home = lambda: None,
    once: bool = False,
    apart: bool = False,
) -> Compiled:
    """A method of ``root``, traced when it is called.

    Args:
        root: the model.
        receive: gives a callable for each graph. A `PartitionerError` that it raises reaches the caller of the model.
        method: name of the method.
        of_class: whether it is that of the model's class, whatever the model itself has under this name.
        whole: whether one graph must be all of it; otherwise Python may stand between graphs.
        home: asked before each frame for the torch device on which all tensors are taken to lie while it is traced, wherever
            they are; ``None`` for where they are.
        once: whether the graph of one call is taken for all others, so that nothing may be decided by a call's values.
        apart: whether state lies on several devices. If Python may stand between graphs, modules that are alike have programs
            of their own then, for the state of each may lie elsewhere.

    Source: torch.compile, https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html
    """
    return Compiled(root, receive, (method, of_class), whole, home, once, apart)


EVERY: weakref.WeakSet[Compiled] = weakref.WeakSet()
"""All that there are in this process."""


class Compiled(Owner):
    """A traced method. Calling it calls the method, through what was made of its graphs.

    Attributes:
        reasons: why frames ran as they are, the last time that they were tried, by their code.
    """

    def __init__(
        self, root: nn.Module, receive: Receive, method: tuple[str, bool], whole: bool, home: Home, once: bool, apart: bool
    ) -> None:
        super().__init__(root, whole, home, once, apart)
        self.receive, self.method = receive, method
        self.reasons: dict[CodeType, str] = {}
        self.tries: Counter[CodeType] = Counter()
        self._start()
        EVERY.add(self)

    @property
    def is_silent(self) -> bool:
        """Whether no code of its frames, so far, speaks of what tells or takes something: a print, a log, its own ops, `next`.

        Packages that are installed are taken to tell what they tell once.
        """
        codes = (*self.programs, *self.failures, *self.reasons)
        return all(_TELLS.isdisjoint(names_in(code)) for code in codes if not is_installed(code.co_filename))

    def _start(self) -> None:
        """Start without programs."""
        self.forked = False
        self.callbacks: dict[_Backend, Any] = {}
        self.entry = _entry(type(self.root).__name__, *self.method)
        self.backend = self._new_backend()
        weakref.finalize(self, reset_code, self.entry.__code__).atexit = False  # or torch would keep its programs for good

    def _new_backend(self) -> _Backend:
        """A backend for the process as it is now."""
        refuse_no_tracer()
        backend = _Backend(self)
        with amended(eval_frame.TorchPatcher, patch=_patched):
            context: Any = torch._dynamo.optimize(backend, nopython=self.whole)
        cached_backends.pop(id(backend))  # kept for `torch._dynamo.reset`, of which ours has no need
        context.callback = Callback(Convert(self, backend), context.callback.hooks)
        context(self.entry)  # so that torch does not skip its code, wherever it stands
        self.callbacks[backend] = context.callback
        return backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, through what was made of its graphs.

        This is what torch.compile puts around a function, without its questions that were asked already (`Programs`) or that
        other backends need: those take three times as long as this.
        """
        if self.forked:
            self._start()
        backend = self.backend
        if not backend.fits():
            backend = self.backend = next((one for one in list(self.callbacks) if one.fits()), None) or self._new_backend()
        for layer in self.layers:
            set_code_exec_strategy(layer, ASKED)  # Dynamo notes for the whole process that it leaves them out
        callback, depth = self.callbacks[backend], get_dynamic_layer_stack_depth()
        stance = eval_frame._stance
        if stance.stance != "default" or stance.backend is not None:
            callback = self._under_stance(callback)
        before = set_eval_frame(None)
        try:
            set_eval_frame(callback)
            try:
                return self.entry(self.root, *args, **kwargs)  # no variable: an error that torch caught may keep the frame
            finally:
                set_eval_frame(before)
        except BaseException as error:
            pop_dynamic_layer_stack_and_undo_to_depth(depth)
            self.pending = {}
            if not isinstance(error, Untraceable):
                raise
            untraceable = error.error
        finally:
            if self.pending:
                self._note_reasons()
        call = partial(self.entry, self.root, *args, **kwargs)
        raise refusal(self.root, call, untraceable, self.once)  # with its own cause, and no other

    def own_error(self, *args: Any, **kwargs: Any) -> Exception | None:
        """What the method itself raises on a call. All is left as it was."""
        return own_error(self.root, partial(self.entry, self.root, *args, **kwargs))

    def _under_stance(self, callback: Any) -> Any:
        """`torch.compiler.set_stance` may ask for calls as they are, if that can be; an error is torch.compile's."""
        as_it_is = not self.whole and eval_frame._stance.stance != "fail_on_recompile"
        return _callback_from_stance(callback) if as_it_is else callback

    def _note_reasons(self) -> None:
        """What the tracer could not do went well as it is: note why, and after some tries leave that code alone."""
        pending, self.pending = self.pending, {}
        for code, reason in pending.items():
            self.reasons[code] = reason
            self.tries[code] += 1
            if self.tries[code] >= TRIES:
                self.failures[code] = reason


class _Backend:
    """What torch calls with each graph. It holds no model: torch keeps it with the code that the model holds.

    A guard in Python loses an interrupt that comes while it is asked: torch takes it for an answer. So what holds for the
    process is asked before the call, and programs made in one state of the process have a backend of their own.
    """

    def __init__(self, owner: Compiled) -> None:
        self.owner = weakref.ref(owner)
        self.conditions: Watched = ()

    def fits(self) -> bool:
        """Whether the process is as it was when the programs were made."""
        for holds in self.conditions:  # noqa: SIM110 - in every call, where it takes half as long as all()
            if not holds({}):
                return False
        return True

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        owner, code, output = self.owner(), HERE.code, InstructionTranslator.current_tx().output
        assert owner is not None and code is not None, "its method is being traced"
        if True in HERE.handled and not HERE.first and not owner.whole:
            raise AsItIs(f"{code.co_name} of line {code.co_firstlineno} handles what ops raise when Python has begun the call")
        within, around = watched(HERE.scope, owner.root, owner.whole)
        if HERE.first:
            self.conditions = tuple(dict.fromkeys((*self.conditions, *around)))  # further programs rarely bring others
            around = ()
        modules = these_modules(HERE.scope["L"]) if owner.between else ()
        HERE.watched = (*modules, *within, *around)
        alone = not HERE.first and not code.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX)
        reason = reason_of(module) or (f"{code.co_name} of line {code.co_firstlineno}, traced on its own" if alone else "")
        forget(module)
        check_sizes(module.graph)
        caught = bool(HERE.handled or module.graph.find_nodes(op="call_function", target=checked))
        numbers, given = as_numbers(module, inputs)
        draws, sets = bool(output.random_calls), _sets(output)

        def receive(values: Sequence[Any]) -> Callable[..., Any]:
            return owner.receive(Found(module, tuple(values), code, HERE.paths, reason, HERE.first, caught, draws, sets))

        apart = owner.whole and owner.home is not None  # lanes of CPUs copy nothing
        return untraced(given_numbers(asking(module, given, receive, apart), numbers))


def _sets(output: OutputGraph) -> bool:
    """Whether Python's objects that were there before are changed when the graph has run."""
    effects = output.side_effects
    found = effects.id_to_variable.values()
    kinds = AttributeMutationExisting, ValueMutationExisting
    return any(isinstance(each.mutation_type, kinds) and effects.is_modified(each) for each in found)


@cache
def _patched() -> None:
    """What torch does at torch.compile's first use, but for one thing: distributions would no longer look at their arguments.

    Its own function stays as it was: whoever calls torch.compile later gets all of it.
    """
    validated = Distribution._validate_args
    _TORCHS_PATCHES()
    Distribution.set_default_validate_args(validated)


def _entry(name: str, method: str, of_class: bool) -> FunctionType:
    """A function with a code object of its own, so that programs are counted, and open shapes learnt, for this model alone."""
    called = f"type(self).{method}(self, " if of_class else f"self.{method}("
    source = f"def {method}(self, /, *args, **kwargs):\n    return {called}*args, **kwargs)\n"
    file = f"<partitioner {name}.{method} {next(_numbers)}>"
    namespace: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace)  # a text of our own
    function: FunctionType = namespace.pop(method)  # torch keeps the namespace until the function's code is gone
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function


def _begin_anew() -> None:
    """In the child of a fork no other thread traces or looks at guards, whoever held their locks: it makes its own programs."""
    convert_frame.compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
    for one in list(EVERY):
        one.forked = True


os.register_at_fork(after_in_child=_begin_anew)
