"""The way in: torch.compile's tracer, with its guards, and a backend of ours behind it.

`compiled` gives a function that is called as the model is. Dynamo runs the model's Python once on fake tensors, hands each
graph that it finds to ``receive``, and afterwards calls what ``receive`` gave, under C++ guards on everything that the
Python looked at: attributes, configs, globals, hooks, modes, shapes, strides, classes. A call that no guard accepts is
traced again.

What is ours is the answer to failure. Dynamo marks a code object that it could not trace as one to skip, for the whole process
and for good, and logs a page. Here a failure concerns one call: it runs as it is, so that what the model raises is what the
caller sees; only if that went well is the code left alone from then on, and the reason noted.
"""

from __future__ import annotations

import linecache
import logging
import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from types import CodeType, FunctionType
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, reset_code
from torch._dynamo import config, convert_frame
from torch._dynamo.eval_frame import cached_backends
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError, Unsupported
from torch._dynamo.types import ConvertFrameReturn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorConverter,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from partitioner.errors import PartitionerError, TraceError
from partitioner.frontend.capture.sameness import Watched, check, watched
from partitioner.model.keep import state_kept
from partitioner.model.source import is_user_code
from partitioner.model.tracing import HERE as THREAD

SETTINGS: Mapping[str, Any] = {
    "skip_nnmodule_hook_guards": False,  # hooks that come and go are seen
    "allow_unspec_int_on_nn_module": True,  # a counter on a module is an input, not a program for each number
    "recompile_limit": 1 << 30,  # the number of programs is ours to limit: past Dynamo's, it would run eagerly without a word
    "accumulated_recompile_limit": 1 << 30,
    "allow_rnn": True,  # recurrent layers are ops like others
    "capture_scalar_outputs": True,  # so is asking a tensor for a number,
    "capture_dynamic_output_shape_ops": True,  # and an op whose result has as many rows as the data say: routing to experts
    "record_runtime_overhead": False,
    "suppress_errors": False,
    "optimize_ddp": False,
    "fail_on_recompile_limit_hit": False,
}

DEEP = 10_000
"""Python's recursion limit while a frame is traced."""

for _file in ("frontend", "backends", "runtime.programs"):
    torch._dynamo.trace_rules.add(f"partitioner.{_file}")  # a torch.compile around a partitioned module leaves it its lanes

MOST = 64
"""Programs that one code may have. What makes more of them has a constant that differs in every call."""

TRIES = 3
"""Calls after which a frame that cannot be traced, and runs well as it is, is left alone."""

_numbers = count()


@dataclass(frozen=True, eq=False)
class Found:
    """A graph that Dynamo found.

    Args:
        module: the graph, over torch-level functions; every tensor that it reads is a placeholder.
        inputs: the real values of the placeholders, in order.
        paths: qualified name of each module that is a local variable of the traced frame, by the variable's name.
        function: name of the traced function.
        reason: why the graph ends where it does, with the line, if Python goes on without it; ``""`` if forward returns.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    paths: Mapping[str, str] = field(default_factory=dict)
    function: str = ""
    reason: str = ""


Receive = Callable[[Found], Callable[..., Sequence[Any]]]


class Here(threading.local):
    """What this thread is tracing: whose frame, whether torch's loggers keep silent, and what else is to be guarded."""

    paths: Mapping[str, str]
    function: str
    tracing: bool
    scope: Mapping[str, Any]
    watched: Watched

    def __init__(self) -> None:
        self.paths, self.function, self.tracing, self.scope, self.watched = {}, "", False, {}, ()


HERE = Here()


def compiled(
    root: nn.Module, receive: Receive, *, method: str = "forward", whole: bool = False, home: str | None = None
) -> Compiled:
    """A method of ``root``, traced when it is called.

    Args:
        root: the model.
        receive: gives a callable for each graph. A `PartitionerError` that it raises reaches the caller of the model.
        method: name of the method.
        whole: whether one graph must be all of it; otherwise Python may stand between graphs.
        home: torch device on which all tensors are taken to lie while tracing, wherever they are.

    Source: torch.compile, https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html
    """
    return Compiled(root, receive, method, whole, home)


EVERY: weakref.WeakSet[Compiled] = weakref.WeakSet()
"""All that there are in this process."""


class Compiled:
    """A traced method. Calling it calls the method, through what was made of its graphs.

    Args:
        failures: why frames run as they are, by their code.
    """

    def __init__(self, root: nn.Module, receive: Receive, method: str, whole: bool, home: str | None) -> None:
        self.root, self.receive, self.whole, self.home = root, receive, whole, home
        self.failures: dict[CodeType, str] = {}
        self.pending: dict[CodeType, str] = {}
        self.tries: Counter[CodeType] = Counter()
        self.programs: Counter[CodeType] = Counter()
        self.method = method
        self._begin()
        EVERY.add(self)

    def _begin(self) -> None:
        """Start without programs."""
        self.forked = False
        backend = _Backend(self)
        context: Any = torch._dynamo.optimize(backend, nopython=self.whole)
        cached_backends.pop(id(backend))  # kept for `torch._dynamo.reset`, of which ours has no need
        context.callback = _Callback(_Convert(self, backend), context.callback.hooks)
        context.enter_exit_hooks = []  # what they prepare for other backends costs time in each call
        self.entry = _entry(type(self.root).__name__, self.method)
        self.function = context(self.entry)
        weakref.finalize(self, reset_code, self.entry.__code__).atexit = False  # or torch would keep its programs for good

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, through what was made of its graphs."""
        if self.forked:
            self._begin()
        try:
            result = self.function(self.root, *args, **kwargs)
        except Untraceable as refused:
            raise self._refusal(refused.error, args, kwargs) from None
        finally:
            pending, self.pending = self.pending, {}
        for code, reason in pending.items():  # eager could do what the tracer could not
            self.tries[code] += 1
            if self.tries[code] >= TRIES:
                self.failures[code] = reason
        return result

    def _refusal(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException:
        """What the model itself raises on this call, told on fakes; or why it cannot be one graph."""
        if may_be_the_models(error):
            try:
                with state_kept(self.root, tensors=False), on_fakes(self.home):
                    self.entry(self.root, *args, **kwargs)
            except (UnsupportedFakeTensorException, DataDependentOutputException, DynamicOutputShapeException):
                pass  # what fakes cannot do
            except Exception as raised:  # the model may raise anything
                return raised
        name = f"{type(self.root).__name__}.{self.entry.__name__}"
        return TraceError(f"{name} cannot be one graph, as state on several devices asks for: {explain(error)}")


class Untraceable(Exception):
    """A frame cannot be traced, and may not run as it is."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def may_be_the_models(error: Exception) -> bool:
    """Whether tracing failed because the model raises, and not because Python stands between two graphs."""
    raises = ("Observed exception", "Data-dependent assertion failed")
    return not isinstance(error, Unsupported) or isinstance(error, TorchRuntimeError) or str(error).startswith(raises)


class _Backend:
    """What torch calls with each graph. It holds no model: torch keeps it with the code that the model holds."""

    def __init__(self, owner: Compiled) -> None:
        self.owner = weakref.ref(owner)

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        owner = self.owner()
        assert owner is not None, "its method is being traced"
        HERE.watched = watched(HERE.scope, owner.root, owner.whole)
        return owner.receive(Found(module, tuple(inputs), HERE.paths, HERE.function, _reason(module)))


def _entry(name: str, method: str) -> FunctionType:
    """A function with a code object of its own, so that programs are counted, and open shapes learnt, for this model alone."""
    source = f"def {method}(self, /, *args, **kwargs):\n    return self.{method}(*args, **kwargs)\n"
    file = f"<partitioner {name}.{method} {next(_numbers)}>"
    namespace: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace)  # a text of our own
    function: FunctionType = namespace.pop(method)  # torch keeps the namespace until the function's code is gone
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function


class _Callback(convert_frame.CatchErrorsWrapper):
    """What torch calls for each new frame: Dynamo's, one thread at a time and under our settings.

    Under a dispatch mode of the caller's (counting FLOPs, logging) Dynamo would leave the frame alone, and for good. Here the
    mode waits, and sees the ops when the program runs.
    """

    def __call__(self, *arguments: Any) -> ConvertFrameReturn:
        with convert_frame.compile_lock, config.patch(**SETTINGS), _disable_current_modes():
            return super().__call__(*arguments)


class _Convert:
    """What that calls for each frame that is to be traced: Dynamo, and our answer to failure."""

    def __init__(self, owner: Compiled, backend: _Backend) -> None:
        self.owner = owner
        self._torchdynamo_orig_backend = backend  # the name by which torch looks for the backend
        self.convert = convert_frame.convert_frame_assert(backend, one_graph=owner.whole)

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> ConvertFrameReturn:
        code = frame.f_code
        if self.owner.programs[code] >= MOST:
            return self._enough(code)
        if code in self.owner.failures or code in self.owner.pending:
            return ConvertFrameReturn(apply_to_code=False)
        try:
            with tracing(self.owner.root, frame, self.owner.home):
                answer = self.convert(frame, cache_entry, hooks, frame_state, skip=skip + 1)
                if answer.guarded_code is not None and HERE.watched:
                    _add_guard(answer.guarded_code.guard_manager, check(HERE.watched, frame.f_globals))
        except BackendCompilerFailed as error:
            if self.owner.whole or isinstance(_cause(error), PartitionerError):
                raise _cause(error) from None
            self.owner.pending[code] = f"a fault of partitioner, {type(_cause(error)).__name__}: {_cause(error)}"
            warnings.warn(f"{self.owner.pending[code]}; this part of the model runs as it is", RuntimeWarning, stacklevel=2)
            return ConvertFrameReturn(apply_to_code=False)
        except Exception as error:
            if self.owner.whole:
                raise Untraceable(error) from error
            if type(error).__name__ == "ResumePrologueTracingError":
                raise
            self.owner.pending[code] = explain(error)
            strategy = getattr(error, "frame_exec_strategy", None)
            chosen = {} if strategy is None else {"frame_exec_strategy": strategy}
            return ConvertFrameReturn(apply_to_code=False, **chosen)
        if answer.guarded_code is None and (code is self.owner.entry.__code__ or is_user_code(code.co_filename)):
            return replace(answer, apply_to_code=False)  # the next call may have tensors
        self.owner.programs[code] += 1
        return answer

    def _enough(self, code: CodeType) -> ConvertFrameReturn:
        """No further program for a code: it runs as it is, with all that it calls, or is refused."""
        name = f"{type(self.owner.root).__name__}.{code.co_name}"
        reason = f"{name} has {MOST} programs, and a call needs another one; TORCH_LOGS=recompiles tells why"
        if self.owner.whole:
            raise TraceError(reason)
        if code not in self.owner.failures:
            self.owner.failures[code] = reason
            warnings.warn(f"{reason}. Calls that no program is for run as they are from now on.", RuntimeWarning, stacklevel=2)
        strategy = _FrameExecStrategy(_FrameAction.RUN_ONLY, _FrameAction.RUN_ONLY)
        return ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)


@contextmanager
def tracing(root: nn.Module, frame: Any, home: str | None) -> Iterator[None]:
    """While a frame is traced: our settings, silence of torch's loggers on this thread, all fakes on one device."""
    before, others = dict(vars(HERE)), THREAD.ours
    THREAD.ours = True
    HERE.paths, HERE.function, HERE.tracing = _modules_in(frame, root), frame.f_code.co_name, True
    HERE.scope, HERE.watched = {"L": frame.f_locals, "G": frame.f_globals}, ()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEP))  # a call of the user's takes Dynamo some ten of its own
    try:
        with nullcontext() if home is None else fakes_at(torch.device(home)):
            yield
    finally:
        vars(HERE).update(before)
        THREAD.ours = others
        sys.setrecursionlimit(limit)


def _add_guard(manager: Any, holds: Callable[[Any], bool]) -> None:
    """One more condition for a program that was just made."""
    try:
        manager.root.add_lambda_guard(holds, ["what Dynamo does not guard is as it was"], None)
    except TypeError:  # torch 2.11 asks for no stack
        manager.root.add_lambda_guard(holds, ["what Dynamo does not guard is as it was"])


def _modules_in(frame: Any, root: nn.Module) -> dict[str, str]:
    """Qualified name of each module of ``root`` among a frame's local variables."""
    held = {id(value): name for name, value in frame.f_locals.items() if isinstance(value, nn.Module)}
    return {held[id(module)]: path for path, module in root.named_modules() if id(module) in held}


@contextmanager
def fakes_at(device: torch.device) -> Iterator[None]:
    """Every fake that this thread makes of a real tensor says that it lies on ``device``. Others see nothing of that.

    A model whose state lies on several devices cannot be traced as it lies. Guards are made of the real tensors.
    """
    with convert_frame.compile_lock:
        plain, thread = FakeTensorConverter.from_real_tensor, threading.get_ident()

        def from_real_tensor(self: FakeTensorConverter, *args: Any, **kwargs: Any) -> Any:
            fake = plain(self, *args, **kwargs)
            if threading.get_ident() == thread and fake.fake_device.type != "meta":
                fake.fake_device = device
            return fake

        FakeTensorConverter.from_real_tensor = from_real_tensor  # type: ignore[method-assign]
        try:
            yield
        finally:
            FakeTensorConverter.from_real_tensor = plain  # type: ignore[method-assign]


@contextmanager
def on_fakes(home: str | None) -> Iterator[None]:
    """Real tensors give fakes meanwhile, all of them at ``home``, and torch's loggers keep silent about what fails."""
    before, HERE.tracing = HERE.tracing, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), nullcontext() if home is None else fakes_at(torch.device(home)):
            yield
    finally:
        HERE.tracing = before


class _Silence(logging.Filter):
    """What torch logs about a try of ours is nobody's concern; what it logs on other threads is."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not HERE.tracing


_TALKING = ("torch._dynamo", "torch._subclasses", "torch.fx.experimental", "torch._guards", "torch._logging")
for _name in [name for name in logging.root.manager.loggerDict if name.startswith(_TALKING)]:
    logging.getLogger(_name).addFilter(_Silence())


def explain(error: BaseException) -> str:
    """Why something could not be traced, in one line with the line of the user's code."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    frames = [frame for frame in getattr(error, "real_stack", ()) if is_user_code(frame.filename)]
    return f"{text} (at {frames[-1].filename}:{frames[-1].lineno})" if frames else text


def _reason(module: torch.fx.GraphModule) -> str:
    """Why a graph ends where it does, if forward goes on after it."""
    found = getattr(module, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return ""
    text = found.reason.splitlines()[0]
    text = "Python decides on the value of a tensor" if text.startswith("generic_jump") else text
    frames = [frame for frame in found.user_stack if is_user_code(frame.filename)]
    return f"{text} (at {frames[-1].filename}:{frames[-1].lineno})" if frames else text


def _cause(error: BackendCompilerFailed) -> BaseException:
    """What our backend raised."""
    inner: BaseException = error.inner_exception
    return inner


def _begin_anew() -> None:
    """In the child of a fork no other thread traces or looks at guards, whoever held their locks: it makes its own programs."""
    convert_frame.compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
    for one in list(EVERY):
        one.forked = True


os.register_at_fork(after_in_child=_begin_anew)
