"""Programs of others that were different: of torch's own tests of its tracer, of its layers' tests, of its documentation.

What they showed is told here in the smallest form.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from types import FrameType
from typing import Any

import pytest
import torch
from lanes import assert_same
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner import TraceError, partition
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet, stand_first
from partitioner.model.recursion import deeper
from programs import Calls


def _said(call: Callable[[], object]) -> list[str]:
    """The warnings of a call, all of them, and what it prints, where no filter was put before ours."""
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(StringIO()) as printed:
        warnings.simplefilter("always")
        stand_first()
        call()
    return [*(str(each.message) for each in caught), printed.getvalue()]


def test_what_a_model_says_is_said_when_it_is_called_and_as_often_as_in_eager() -> None:
    """`partition` warned 20,000 times of a softmax without a dimension, and the first call three times."""

    def talks(x: Tensor) -> Tensor:
        print("rows", len(x))
        warnings.warn("mine", stacklevel=1)
        return F.softmax(x) + F.interpolate(x[None, None], scale_factor=2, recompute_scale_factor=True).mean()

    x = torch.ones(3, 4)
    expected = [_said(lambda: talks(x)) for _ in range(2)]
    assert len(expected[0]) == 3, "the function warns twice, and prints"
    made: list[nn.Module] = []
    for example in (None, x):
        assert _said(lambda given=example: made.append(partition(Calls(talks), ["cpu"], example_inputs=given)))[:-1] == []
        assert [_said(lambda: made[-1](x)) for _ in range(2)] == expected


def test_what_has_been_said_once_stays_said() -> None:
    """A block of `catch_warnings` stood around each tracing, and by it Python forgets what it has said already."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for number in range(4):
            partition(nn.Linear(2, 2), ["cpu"], example_inputs=torch.ones(1, 2))
            if number:  # the first imports what changes filters
                warnings.warn("mine", stacklevel=1)
    assert [str(each.message) for each in caught] == ["mine"]


def test_who_is_quiet_is_one_thread_and_an_interrupt_ends_it() -> None:
    """What other threads warn of is heard; a block that is left by an error leaves nothing behind. Filters stay as they are: a
    model that read them was traced with one more than there were.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stand_first()
        before = list(warnings.filters)
        with suppress(KeyboardInterrupt), quiet():
            raise KeyboardInterrupt
        warnings.warn("heard again", stacklevel=1)
        with quiet():
            warnings.warn("not heard", stacklevel=1)
            other = threading.Thread(target=lambda: warnings.warn("heard", stacklevel=1))
            other.start()
            other.join()
            assert list(warnings.filters) == before
    assert [str(each.message) for each in caught] == ["heard again", "heard"]


def test_who_is_not_asked_for_is_quiet_in_a_process_as_it_comes() -> None:
    """The filter stands before Python's own from the import on."""
    code = """
        import torch
        from partitioner import partition

        class Soft(torch.nn.Module):
            def forward(self, x):
                return torch.nn.functional.softmax(x)

        soft = partition(Soft(), ["cpu:0", "cpu:1"], example_inputs=torch.ones(2, 2))
        print("made", flush=True)
        soft(torch.ones(2, 2))
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
    before, after = said.split("made")
    assert "Implicit dimension" not in before and after.count("Implicit dimension") == 1, said


@pytest.mark.slow
def test_what_a_model_warns_of_once_is_said_once_though_it_is_traced_at_its_first_call() -> None:
    """The tracer's first question makes Python forget what it has shown: the second call said it again."""
    code = """
        import warnings, torch
        from partitioner import partition

        class Warns(torch.nn.Linear):
            def forward(self, x):
                warnings.warn("mine")
                return super().forward(x)

        torch.compile(lambda x: x, backend="eager")(torch.ones(1))
        model = partition(Warns(2, 2), ["cpu"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                model(torch.ones(2, 2))
        print([str(each.message) for each in caught])
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.strip() == "['mine']"


def test_an_iterator_that_forward_gives_is_one_of_eagers_kind() -> None:
    """The tracer ran generators to their end, and gave an iterator over a tuple for most kinds."""
    x = torch.ones(2)
    given: list[Callable[[Tensor], Any]] = [
        lambda x: [x + 1, (each * 2 for each in (x, x + 1))],
        lambda x: [x + 1, itertools.pairwise([x * 2, x, x])],
    ]
    for function in given:
        model = partition(Calls(function), ["cpu"])
        for _ in range(2):
            expected, actual = function(x)[1], model(x)[1]
            assert type(actual) is type(expected)
            assert_same(list(expected), list(actual))


class Two(torch.autograd.Function):
    """Two results. A gradient that nobody asks for is none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, one: Tensor | None, other: Tensor | None) -> Any:
        return one * 3 if other is None else other


class Wrong(torch.autograd.Function):
    """Its backward gives too much, in number or in size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x * 1

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:
        return (torch.ones(5), None) if ctx.size else (given, None, given)


def test_a_backward_is_given_no_zeros_that_it_has_not_asked_for_and_fails_as_in_eager() -> None:
    """A function with ``set_materialize_grads(False)`` had other gradients, and gradients too many were dropped.

    And the history of a result had another name than in eager, which it shows when it is printed.
    """
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: Two.apply(x)[0],
        lambda x: Wrong.apply(x, 0),
        lambda x: Wrong.apply(x, 1),
    ]
    for function in functions:
        found = [_gradient(call) for call in (function, partition(Calls(function), ["cpu"]))]
        assert found[0] == found[1]


def _gradient(call: Callable[[Tensor], Tensor]) -> str:
    """The gradient of the call, or why there is none, and what the result shows."""
    x = torch.ones(2, requires_grad=True)
    result = call(x)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return f"{result!r} {error}"
    return f"{result!r} {x.grad!r}"


def test_a_tracer_that_is_turned_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a `KeyError` of a number."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(TraceError, match=r"TORCHDYNAMO_DISABLE=1 .* unset it"):
        partition(Calls(torch.relu), ["cpu"], example_inputs=torch.ones(2))
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    with torch._dynamo.config.patch(disable=True), pytest.raises(TraceError, match=r"TORCH_COMPILE_DISABLE=1 .* unset it"):
        partition(Calls(torch.relu), ["cpu"], example_inputs=torch.ones(2))


def test_the_recursion_limit_is_the_users_after_an_interrupt_and_whoever_puts_options_back() -> None:
    """It stayed at 10,000: after an interrupt before the ``try``, and where one thread traced while another kept options."""
    before, tracer = sys.getrecursionlimit(), sys.gettrace()
    for line in range(5):  # those up to its `yield`
        sys.settrace(_interrupting(line))
        with suppress(KeyboardInterrupt), deeper():
            pass
        sys.settrace(tracer)
        assert sys.getrecursionlimit() == before
    with deeper():
        undo = process_undo()
        assert sys.getrecursionlimit() > before
        child = os.fork()
        if child == 0:
            os._exit(sys.getrecursionlimit() != before)
        assert os.waitpid(child, 0)[1] == 0
    undo()
    assert sys.getrecursionlimit() == before


def _interrupting(line: int) -> Callable[..., Any]:
    """For `sys.settrace`: an interrupt before so many lines of what makes the limit another one have run."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name == deeper.__name__ and event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    return trace


def test_a_condition_of_torch_cond_takes_tensors_alone() -> None:
    """Numbers, texts and ``None`` went to the branches, and a condition of ``None`` was false, where torch raises."""

    def either(x: Tensor, condition: Any, other: Any) -> Any:
        return torch.cond(condition, lambda a, b: a * 2, lambda a, b: a + 1, (x, other))

    x = torch.ones(3, 2)
    cases = [(True, 3), (x.sum() > 0, 3), (x > 0, x), (None, x)]
    model = partition(Calls(either), ["cpu"])
    for case in cases:
        assert _result(either, x, *case) == _result(model, x, *case)


def test_what_is_made_under_inference_mode_has_no_gradient_whoever_enables_them() -> None:
    """The tracer leaves inference mode, where gradients that forward enables are some: it said that the tensor has one."""

    def asks(x: Tensor) -> tuple[Tensor, bool]:
        with torch.enable_grad():
            y = x * torch.ones(2, requires_grad=True)
        return y, y.requires_grad

    x, model = torch.ones(2), partition(Calls(asks), ["cpu"])
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert _result(asks, x) == _result(model, x)


def _result(call: Callable[..., Any], *args: Any) -> str:
    """What a call gives or raises."""
    try:
        return repr(call(*args))
    except RuntimeError as error:
        return f"{type(error).__name__} {error}"
