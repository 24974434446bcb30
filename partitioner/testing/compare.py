"""Asserts that two modules cannot be told apart by a caller: values, state, random numbers and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set

import torch
from torch import nn

from partitioner.testing.runs import Call, Run, run


def assert_equal_runs(
    eager: nn.Module,
    other: nn.Module,
    inputs: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    seed: int = 0,
    train: bool,
    gradients: bool = True,
    bitwise: bool = True,
    gradient_bitwise: bool | None = None,
    calls: int = 2,
    keys: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Runs both modules alike and compares everything that a caller could see.

    Compared are the outputs (containers, types, dtypes, shapes, values), the inputs afterwards, parameters and buffers by name
    before and afterwards, the state_dict's keys, the state of the random generators, and the gradients of parameters and of
    those inputs that require one. Both modules are left as they were found, so they may share parameters; only the Python state
    of a module, such as a list that its forward extends, is not put back.

    Args:
        eager: the module that is right by definition.
        other: the module under test, such as what `partition` returned.
        inputs: positional arguments; tensors of any shape, dtype and device. Each call gets a deep copy of them all.
        kwargs: keyword arguments, copied likewise.
        seed: given to `torch.manual_seed` before each module's first call.
        train: the mode both modules are put in.
        gradients: whether to run backward; without it both run under `no_grad`.
        bitwise: whether outputs and state must agree to the last bit; a NaN agrees with any NaN, -0.0 does not with 0.0.
        gradient_bitwise: the same for gradients. None decides for each: to the last bit, unless three or more gradients are
            summed on its way, whose order autograd does not promise. Those, and all with False, may differ by rounding.
        calls: how often each module is called, at least once. A trace in which a buffer's update ran while tracing is right on
            the first call and wrong on the second.
        keys: whether both modules must have the same names in their state_dict and among their buffers.
        rtol: where rounding is accepted, the difference allowed as a share of the larger magnitude; for gradients, of the
            largest gradient in the run, because a gradient near zero is often what is left of large ones that cancel.
        atol: the difference allowed on top of that.

    Raises:
        AssertionError: something differs. The message names every such thing, and by how much.

    >>> half, third = torch.nn.Threshold(0.5, 0.0), torch.nn.Threshold(0.3, 0.0)
    >>> assert_equal_runs(half, third, (torch.tensor([0.1, 0.6]),), train=False)
    >>> assert_equal_runs(half, third, (torch.tensor([0.4, 0.6]),), train=False, calls=1)
    Traceback (most recent call last):
        ...
    AssertionError: Threshold differs from Threshold (eager), train=False, seed=0:
      call 0: output: 1 of 2 elements differ; the most by 0.4 at (0,): 0.0 in eager, 0.4000000059604645 in other
    """
    call = Call(tuple(inputs), dict(kwargs or {}), seed, train, gradients, max(calls, 1))
    expected, actual = run(eager, call), run(other, call)
    faults = [*_forms(expected, actual), *(_names(expected, actual) if keys else ())]
    faults += [*_values(expected, actual, bitwise, rtol, atol), *_generators(expected, actual)]
    faults += _gradients(expected, actual, gradient_bitwise, rtol, atol)
    if faults:
        title = f"{type(other).__name__} differs from {type(eager).__name__} (eager), train={train}, seed={seed}:"
        raise AssertionError("\n  ".join([title, *faults]))


def _forms(expected: Run, actual: Run) -> Iterator[str]:
    for number, (left, right) in enumerate(zip(expected.structure, actual.structure, strict=True)):
        if left != right:
            yield f"call {number}: output has the form {right}, and {left} in eager"


def _names(expected: Run, actual: Run) -> Iterator[str]:
    yield from _missing("state_dict key", expected.keys, actual.keys)
    yield from _missing("buffer", expected.before.keys() - expected.keys, actual.before.keys() - actual.keys)


def _missing(what: str, expected: Set[str], actual: Set[str]) -> Iterator[str]:
    yield from (f"{what} {name!r} is missing in other" for name in sorted(expected - actual))
    yield from (f"{what} {name!r} is not in eager" for name in sorted(actual - expected))


def _values(expected: Run, actual: Run, bitwise: bool, rtol: float, atol: float) -> Iterator[str]:
    """Outputs, inputs and state, each where both modules have it; `_forms` and `_names` tell of the rest."""
    groups = (
        ("", expected.outputs, actual.outputs),
        ("", expected.inputs, actual.inputs),
        ("before the first call: ", expected.before, actual.before),
        ("after the last call: ", expected.state, actual.state),
    )
    for title, left, right in groups:
        for name, value in left.items():
            fault = difference(value, right[name], bitwise, rtol, atol) if name in right else None
            if fault:
                yield f"{title}{name}: {fault}"


def _generators(expected: Run, actual: Run) -> Iterator[str]:
    for device, state in expected.generators.items():
        if difference(state, actual.generators.get(device)):
            yield f"random generator of {device}: left in another state, so other drew more or fewer numbers"


def _gradients(expected: Run, actual: Run, bitwise: bool | None, rtol: float, atol: float) -> Iterator[str]:
    sizes = [_largest(value) for value in expected.gradients.values() if isinstance(value, torch.Tensor)]
    scale = max(sizes, default=0.0)
    for name, value in expected.gradients.items():
        if name not in actual.gradients:
            continue
        exact = name not in expected.reorderable if bitwise is None else bitwise
        fault = difference(value, actual.gradients[name], exact, rtol, atol, scale)
        if fault:
            yield f"gradient of {name}: {fault}" + ("" if exact else ", which is more than rounding")


def difference(
    expected: object,
    actual: object,
    bitwise: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
    scale: float | None = None,
) -> str | None:
    """Says how two values differ, or None when they agree.

    Args:
        expected: the value in eager: a tensor of any shape and dtype, or anything with `==`.
        actual: the value in the other module.
        bitwise: whether tensors must agree to the last bit.
        rtol: otherwise, the difference allowed as a share of `scale`.
        atol: the difference allowed on top of that.
        scale: the magnitude `rtol` is a share of; None takes each element's own.

    Returns:
        One line without a name in front, or None.

    >>> import torch
    >>> difference(torch.ones(3), torch.tensor([1.0, 1.5, 1.0]))
    '1 of 3 elements differ; the most by 0.5 at (1,): 1.0 in eager, 1.5 in other'
    >>> difference(torch.zeros(2), torch.zeros(2, 1))
    'shape is (2, 1), and (2,) in eager'
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return _plain_difference(expected, actual)
    for what in ("dtype", "shape", "requires_grad"):
        left, right = getattr(expected, what), getattr(actual, what)
        if left != right:
            left, right = (tuple(side) if what == "shape" else side for side in (left, right))
            return f"{what} is {right}, and {left} in eager"
    with torch.no_grad():
        return _element_difference(_numbers(expected), _numbers(actual), bitwise, rtol, atol, scale)


def _plain_difference(expected: object, actual: object) -> str | None:
    if isinstance(expected, torch.Tensor) or isinstance(actual, torch.Tensor):
        same = False
    else:
        same = type(expected) is type(actual) and bool(expected == actual or (expected != expected and actual != actual))
    return None if same else f"{_brief(actual)}, and {_brief(expected)} in eager"


def _brief(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _element_difference(
    left: torch.Tensor, right: torch.Tensor, bitwise: bool, rtol: float, atol: float, scale: float | None
) -> str | None:
    differs = ~_same_bits(left, right)
    gap = (left.double() - right.double()).abs().nan_to_num(nan=math.inf)
    if not bitwise:
        size = left.double().abs() if scale is None else torch.full_like(gap, scale)
        differs &= ~(gap <= atol + rtol * size)
    if not differs.any():
        return None
    worst = int(torch.where(differs, gap, -1.0).argmax())
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), left.shape))
    a, b = left.flatten()[worst].item(), right.flatten()[worst].item()
    by = f"{gap.flatten()[worst].item():.6g}"
    return f"{int(differs.sum())} of {left.numel()} elements differ; the most by {by} at {where}: {a} in eager, {b} in other"


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if not left.is_floating_point():
        return left == right
    same = (left == right) & (torch.signbit(left) == torch.signbit(right))
    return same | (left.isnan() & right.isnan())


def _numbers(value: torch.Tensor) -> torch.Tensor:
    """The values as real numbers in a plain strided tensor."""
    dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _largest(value: torch.Tensor) -> float:
    numbers = _numbers(value).double().abs()
    finite = numbers[numbers.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0
