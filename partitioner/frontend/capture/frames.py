"""Dynamo at one frame: our settings, and our answer to failure.

Dynamo marks a code object that it could not trace as one to skip, for the whole process and for good, and logs a page. Here a
failure concerns one call: it runs as it is, so that what the model raises is what the caller sees.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from types import CodeType
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo import config, convert_frame
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables.torch import get_overridable_functions
from torch._functorch.autograd_function import WrappedCtx
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import _disable_current_modes

from partitioner.errors import PartitionerError, TraceError
from partitioner.frontend.capture import amendments  # noqa: F401 - each of them amends something
from partitioner.frontend.capture.amended import all_amended
from partitioner.frontend.capture.fakes import fakes_at
from partitioner.frontend.capture.here import HERE, Here, explain
from partitioner.frontend.capture.interrupts import held_back
from partitioner.frontend.capture.owner import MOST, AsItIs, Owner, Untraceable
from partitioner.frontend.capture.python.answers import answered_now
from partitioner.frontend.capture.sameness import check
from partitioner.frontend.capture.tensors.averages import counts
from partitioner.model.modes import hooks_refused, refuse_hooks
from partitioner.model.quiet import Note, quiet
from partitioner.model.recursion import deeper
from partitioner.model.state import lies_on_meta
from partitioner.model.tracing import HERE as THREAD

get_overridable_functions()  # which makes Python forget, the first time, what it has warned of

SETTINGS: Mapping[str, Any] = {
    "skip_nnmodule_hook_guards": False,  # hooks that come and go are seen
    "allow_unspec_int_on_nn_module": True,  # a counter on a module is an input, not a program for each number
    "recompile_limit": 1 << 30,  # the number of programs is ours to limit: past Dynamo's, it would run eagerly without a word
    "accumulated_recompile_limit": 1 << 30,
    "allow_rnn": True,  # recurrent layers are ops like others
    "capture_scalar_outputs": True,  # so is asking a tensor for a number,
    "capture_dynamic_output_shape_ops": True,  # and an op whose result has as many rows as the data say: routing to experts
    "trace_numpy": False,  # numpy's arrays are no tensors
    "use_recursive_dict_tags_for_guards": False,  # torch 2.11 takes them for a sign that nothing has changed
    "skip_guards_on_constant_func_defaults": False,
    "skip_tensor_guards_with_matching_dict_tags": False,  # so does it here: a tensor changes and its dictionary does not
    "skip_no_tensor_aliasing_guards_on_parameters": False,  # weights that are tied later are seen
    "use_lamba_guard_for_object_aliasing": False,  # that two are one is asked in C++, as torch 2.14 does, and not in Python
    "record_runtime_overhead": False,
    "suppress_errors": False,
    "optimize_ddp": False,
    "rewrite_assert_with_torch_assert": False,  # the user's own error is raised
    "fail_on_recompile_limit_hit": False,
}

ONE_SIZE: Mapping[str, Any] = {"automatic_dynamic_shapes": False, "specialize_float": True}
"""With these, what has differed from call to call does not vary in a program: it is as it is now."""

ASKED = _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT)
"""Of each frame it is asked how it is to run."""

_CONTEXTS = (FunctionCtx, WrappedCtx)
"""What the forward of an autograd function is given, where Python calls it between graphs."""

AS_IS = _FrameExecStrategy(_FrameAction.RUN_ONLY, _FrameAction.RUN_ONLY)
"""A call runs as it is, with all that it calls."""

for _file in ("frontend", "backends", "runtime.programs"):
    torch._dynamo.trace_rules.add(f"partitioner.{_file}")  # a torch.compile around a partitioned module leaves it its lanes


class Callback(convert_frame.CatchErrorsWrapper):
    """What torch calls for each new frame: Dynamo's, one thread at a time and under our settings.

    Under a dispatch mode of the caller's (counting FLOPs, logging) Dynamo would leave the frame alone, and for good. Here the
    mode waits, and sees the ops when the program runs.
    """

    def __call__(self, *arguments: Any) -> ConvertFrameReturn:
        """Give a frame to Dynamo, if it may still be traced."""
        convert: Any = self._torchdynamo_orig_backend  # `Convert`
        if convert.has_failed(arguments[0].f_code):
            return ConvertFrameReturn(apply_to_code=False)  # asked in every call: what follows would take a millisecond
        profile = sys.getprofile()
        if callable(profile):  # cProfile's is not and could not be put back
            sys.setprofile(None)  # a profiler of the user's looks at the model, not at its tracing
        try:
            settings = {**SETTINGS, **_collecting()}
            with convert_frame.compile_lock, held_back(), config.patch(**settings), _disable_current_modes():
                if arguments[0].f_code in convert.owner.layers:
                    frame, cache_entry, frame_state = arguments
                    return convert(frame, cache_entry, self.hooks, frame_state)  # type: ignore[no-any-return]
                return super().__call__(*arguments)
        finally:
            if callable(profile):
                sys.setprofile(profile)


class Convert:
    """What that calls for each frame that is to be traced: Dynamo, and our answer to failure.

    It does not keep the model: torch never lets go of a callback that has raised.
    """

    def __init__(self, owner: Owner, backend: Any) -> None:
        self._owner = weakref.ref(owner)
        self._torchdynamo_orig_backend = backend  # the name by which torch looks for the backend
        self.convert = convert_frame.convert_frame_assert(backend, one_graph=owner.whole)

    @property
    def owner(self) -> Owner:
        """Whose frames they are; it is called, so it is there."""
        owner = self._owner()
        assert owner is not None, "its method is being called"
        return owner

    def has_failed(self, code: CodeType) -> bool:
        """Whether a code runs as it is because it could not be traced, and not because it has too many programs."""
        owner = self.owner
        return (code in owner.failures or code in owner.pending) and owner.programs[code] < MOST

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> ConvertFrameReturn:
        """Trace a frame, or say how it is to run."""
        code = frame.f_code
        if self.owner.programs[code] >= MOST:
            return self._enough(code)
        if not self.owner.whole and _is_lazy(self.owner.root):
            return ConvertFrameReturn(frame_exec_strategy=AS_IS, apply_to_code=False)
        if not self.owner.whole and any(isinstance(each, _CONTEXTS) for each in frame.f_locals.values()):
            self.owner.pending[code] = "what an autograd function tells torch of its results would be lost"
            return ConvertFrameReturn(apply_to_code=False)
        try:
            answer = self._traced(frame, cache_entry, hooks, frame_state, skip=skip + 2)
        except BackendCompilerFailed as error:
            cause: BaseException = error.inner_exception  # what our backend raised
            if isinstance(cause, AsItIs):
                self.owner.failures[code] = str(cause)
                return ConvertFrameReturn(apply_to_code=False)
            if isinstance(cause, PartitionerError):
                raise cause from None
            fault = f"a fault of partitioner, {type(cause).__name__}: {cause}"
            if self.owner.whole:
                raise TraceError(fault) from cause
            self.owner.pending[code] = fault
            warnings.warn(f"{fault}; this part of the model runs as it is", Note, stacklevel=2)
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
        if answer.guarded_code is None and code is self.owner.entry.__code__:
            return replace(answer, apply_to_code=False)  # the next call may have tensors
        self.owner.programs[code] += 1
        return answer

    def _traced(self, frame: Any, *arguments: Any, skip: int) -> ConvertFrameReturn:
        """What becomes of a frame: where all is to be one graph and cannot be if sizes vary, it is for those of this call."""
        code, owner = frame.f_code, self.owner
        reason = owner.fixed.get(code)
        if reason is None:
            try:
                return self._watched(frame, *arguments, skip=skip + 1)
            except BackendCompilerFailed:
                raise
            except Exception as error:
                if not owner.whole or not owner.programs[code]:
                    raise
                reason = explain(error)
        with config.patch(**ONE_SIZE):
            answer = self._watched(frame, *arguments, skip=skip + 1)
        owner.fixed[code] = reason
        return answer

    def _watched(self, frame: Any, *arguments: Any, skip: int) -> ConvertFrameReturn:
        """What Dynamo makes of a frame, under our guards beside its own."""
        with tracing(self.owner, frame):
            answer = self._converted(frame, *arguments, skip=skip + 1)
            if answer.guarded_code is not None and HERE.watched:
                _add_guard(answer.guarded_code.guard_manager, check(HERE.watched, frame.f_globals))
            return answer

    def _converted(self, *arguments: Any, skip: int) -> ConvertFrameReturn:
        """What Dynamo makes of a frame. Of some things it warns, once: made errors, warnings do not come up in a second try."""
        try:
            return self.convert(*arguments, skip=skip)
        except Exception as error:
            if not isinstance(error.__context__, Warning):
                raise
            return self.convert(*arguments, skip=skip)

    def _enough(self, code: CodeType) -> ConvertFrameReturn:
        """No further program for a code: it runs as it is, with all that it calls, or is refused."""
        name = f"{type(self.owner.root).__name__}.{code.co_name}"
        each = (
            f", one for each size because, with sizes that vary, {self.owner.fixed[code]}" if code in self.owner.fixed else ""
        )
        reason = f"{name} has {MOST} programs{each}, and a call needs another one; TORCH_LOGS=recompiles tells why"
        if self.owner.whole:
            raise TraceError(reason)
        if code not in self.owner.failures:
            self.owner.failures[code] = reason
            warnings.warn(f"{reason}. Calls that no program is for run as they are from now on.", Note, stacklevel=2)
        return ConvertFrameReturn(frame_exec_strategy=AS_IS, apply_to_code=False)


@contextmanager
def tracing(owner: Owner, frame: Any) -> Iterator[None]:
    """While a frame is traced: Dynamo does what is amended, torch's loggers keep silent here, all fakes lie on one device."""
    before, others, refused = dict(vars(HERE)), THREAD.ours, hooks_refused()
    try:
        THREAD.ours = True
        scope, inference = {"L": frame.f_locals, "G": frame.f_globals}, torch.is_inference_mode_enabled()
        paths, counted, home = _modules_in(frame, owner.root), owner.whole and counts(owner.root), owner.home
        code, begins, empty = frame.f_code, _begins(frame, owner.entry.__code__), lies_on_meta(owner.root)
        asked = owner.whole, owner.between, owner.once, owner.apart
        here = Here(paths, code, True, begins, *asked, counted, inference, empty, scope, now=answered_now())
        vars(HERE).update(vars(here))
        with deeper(), quiet(), all_amended(), nullcontext() if home is None else fakes_at(torch.device(home)):
            yield
    finally:
        vars(HERE).update(before)
        THREAD.ours = others
        refuse_hooks(refused)  # Dynamo has torch refuse them as the model does, and forgets that if it fails there


def _collecting() -> Mapping[str, Any]:
    """Where the caller has the search for cycles off, Dynamo does without its own, too: a second for a graph of 3,500 ops."""
    return {} if gc.isenabled() or not hasattr(config, "run_gc_after_compile") else {"run_gc_after_compile": False}


def _begins(frame: Any, entry: CodeType) -> bool:
    """Whether a call begins with a frame: it is the method's entry, or what that calls, and the entry does nothing else.

    What torch makes of the entry's code, where not all of the call is one graph, has its file and its name.
    """
    if frame.f_code is entry:
        return True
    caller = frame.f_back.f_code if frame.f_back is not None else None
    return caller is not None and (caller.co_filename, caller.co_name) == (entry.co_filename, entry.co_name)


def _add_guard(manager: Any, holds: Callable[[Any], bool]) -> None:
    """One more condition for a program that was just made."""
    try:
        manager.root.add_lambda_guard(holds, ["what Dynamo does not guard is as it was"], None)
    except TypeError:  # torch 2.11 asks for no stack
        manager.root.add_lambda_guard(holds, ["what Dynamo does not guard is as it was"])


def _is_lazy(root: nn.Module) -> bool:
    """Whether weights are still to be drawn, in the next call: Dynamo would draw them and put the generator back."""
    return any(map(nn.parameter.is_lazy, chain(root.parameters(), root.buffers())))


def _modules_in(frame: Any, root: nn.Module) -> dict[str, str]:
    """Qualified name of each module of ``root`` among a frame's local variables."""
    held = {id(value): name for name, value in frame.f_locals.items() if isinstance(value, nn.Module)}
    return {held[id(module)]: path for path, module in root.named_modules() if id(module) in held}
