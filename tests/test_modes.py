"""A mode is a property of each op: branches under other grad modes, autocast and inference mode run on other lanes.

    with torch.no_grad():
        a = left(x)                      left: no grad       lane 0
    b = right(x)                         right: grad         lane 1, at the same time

What else is switched in the middle of a forward becomes one op, which runs as it lies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from lanes import act, acting, assert_same, numbers, programs, spread, used_lanes
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from partitioner import partition
from partitioner.runtime.module import Parallel

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def not_autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=False)


def uncached() -> Any:
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


Modes = tuple[Callable[[], Any], Callable[[], Any]]
"""A block, and one inside of it."""

PLAIN, NO_GRAD, AUTOCAST = (nullcontext, nullcontext), (torch.no_grad, nullcontext), (autocast, nullcontext)


class Blocks(nn.Module):
    """Three branches, each under modes of its own, and a head under those of the caller."""

    def __init__(self, *modes: Modes) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(3))
        self.head = nn.Linear(18, 2)
        self.modes = modes

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps (batch, 6) to what each branch gives, and (batch, 2)."""
        found = []
        for branch, (outer, inner) in zip(self.branches, self.modes, strict=True):
            with outer(), inner():
                found.append(branch(x))
        return *found, self.head(torch.cat([one.float() for one in found], 1))


REGIONS: dict[str, tuple[Modes, Modes, Modes]] = {
    "no grad": (NO_GRAD, PLAIN, NO_GRAD),
    "grad in no grad": ((torch.no_grad, torch.enable_grad), NO_GRAD, PLAIN),
    "autocast": (AUTOCAST, PLAIN, AUTOCAST),
    "autocast without cache": ((uncached, nullcontext), AUTOCAST, PLAIN),
    "autocast off in autocast": ((autocast, not_autocast), AUTOCAST, PLAIN),
    "autocast in autocast": ((autocast, autocast), (not_autocast, autocast), PLAIN),
    "autocast and no grad": ((autocast, torch.no_grad), (torch.no_grad, autocast), AUTOCAST),
    "all": (NO_GRAD, AUTOCAST, PLAIN),
}
CALLERS = {"plain": nullcontext, "no grad": torch.no_grad, "autocast": autocast, "inference": torch.inference_mode}


def look(module: nn.Module, caller: Callable[[], Any]) -> tuple[Any, list[Tensor | None]]:
    """What a call gives under a caller's mode: outputs, and gradients of everything."""
    module.zero_grad()
    x = X.clone().requires_grad_()
    with caller():
        outputs = module(x)
    roots = [output for output in outputs if output.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return outputs, [x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REGIONS)
def test_branches_under_modes_of_their_own(name: str) -> None:
    """Values, dtypes, whether gradients are needed, and the gradients; whatever mode the caller is in, one after the other."""
    model = Blocks(*REGIONS[name])
    parallel = spread(model, X, copy=True)
    for caller, mode in CALLERS.items():
        outputs, gradients = look(model, mode)
        found, others = look(parallel, mode)
        assert len(used_lanes(parallel)) == 3, caller
        assert_same(outputs, found)
        assert [one.is_inference() for one in outputs] == [one.is_inference() for one in found], caller
        assert_near(gradients, others, 1e-2 if caller == "autocast" else 1e-6)  # three in bfloat16 meet in the input


def assert_near(wanted: list[Tensor | None], found: list[Tensor | None], tolerance: float) -> None:
    """The same gradients are there, and they are equal but for the order in which sums were taken."""
    for mine, theirs in zip(wanted, found, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)


class Shared(nn.Module):
    """A weight that several branches use, in one block of autocast, in two, or in none but the caller's."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.shared, self.ways, self.blocks = nn.Linear(6, 6), nn.ModuleList(nn.Linear(6, 6) for _ in range(2)), blocks

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        if self.blocks == 0:
            return self.shared(self.ways[0](x)) + self.shared(self.ways[1](x))
        if self.blocks == 1:
            with autocast():
                return self.shared(self.ways[0](x)) + self.shared(self.ways[1](x))
        with autocast():
            first = self.shared(self.ways[0](x))
        with autocast():
            return first + self.shared(self.ways[1](x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("caller", ["plain", "autocast"])
@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_weight_is_cast_as_often_as_in_eager(blocks: int, caller: str) -> None:
    """Once in a block: then its gradients are added as bfloat16, and not as float32. So the bits tell. Again and again, for
    lanes leave their blocks at other times each time."""
    model = Shared(blocks)
    parallel = spread(model, X, lanes=2, copy=True)
    _, gradients = look(_Wrapped(model), CALLERS[caller])
    for _ in range(20):
        assert_same(gradients[1:], look(_Wrapped(parallel), CALLERS[caller])[1][1:])
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_a_branch_under_inference_mode() -> None:
    """Its result can never be trained; the branch beside it can."""
    model = Blocks((torch.inference_mode, nullcontext), PLAIN, (torch.inference_mode, autocast)).requires_grad_(False)
    model.branches[1].requires_grad_()
    model.head.requires_grad_()
    parallel = spread(model, X, copy=True, check=False)
    outputs, found = model(X), parallel(X)
    assert_same(outputs, found)
    assert [one.is_inference() for one in found] == [one.is_inference() for one in outputs] == [True, False, True, False]
    found[3].sum().backward()
    assert parallel.head.weight.grad is not None


def test_modes_are_no_ops() -> None:
    """Nothing in the graph switches: branches are as far apart as without modes, and say what they are under."""
    model = Blocks(NO_GRAD, AUTOCAST, PLAIN)
    parallel = spread(model, X, copy=True)
    without = spread(Blocks(PLAIN, PLAIN, PLAIN), X)
    assert [op.target for op in parallel.graph.ops] == [op.target for op in without.graph.ops]
    shown = {op.name: str(op.mode) for op in parallel.graph.ops if op.mode is not None}
    assert shown["branches_0_0_linear"] == "no grad"
    assert shown["branches_1_0_linear"] == "grad autocast cpu bfloat16"
    assert not any(name.startswith(("branches_2", "head")) for name in shown)


class Looks(nn.Module):
    """Three branches, each of which tells what its thread is under."""

    def __init__(self, *modes: Modes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.modes = modes

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        found = []
        for number, layer in enumerate(self.layers):
            outer, inner = self.modes[number]
            with outer(), inner():
                found.append(act(layer(x), number).float())
        return found[0] + found[1] + found[2]


def test_a_lane_is_under_the_mode_of_its_op_and_then_of_the_next() -> None:
    """What an op sees of its own thread, while the lanes run under different modes."""
    model, seen = Looks(NO_GRAD, AUTOCAST, PLAIN), dict[int, tuple[bool, bool]]()
    parallel = spread(model, X, check=False)
    with ExitStack() as stack:
        for number in range(3):
            looks = lambda number=number: seen.__setitem__(number, (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))  # noqa: E731
            stack.enter_context(acting(number, looks))
        for caller, wanted in ((nullcontext, (True, False)), (torch.no_grad, (False, False)), (autocast, (True, True))):
            seen.clear()
            with caller():
                parallel(X)
                assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == wanted
            assert seen == {0: (False, wanted[1]), 1: (wanted[0], True), 2: wanted}
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_an_error_leaves_the_callers_modes_alone() -> None:
    """Raised under modes that the op is in and the caller is not, on each lane."""
    model = Looks((torch.no_grad, autocast), NO_GRAD, AUTOCAST)
    parallel = spread(model, X, check=False)
    for lane in range(3):
        with acting(lane, lambda: 1 / 0), pytest.raises(ZeroDivisionError):
            parallel(X)
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        with ExitStack() as stack:
            for number in range(3):
                stack.enter_context(acting(number, lambda: None))
            assert_same(model(X), parallel(X))


def test_a_mode_that_forward_leaves_changed() -> None:
    """As in eager, the caller is under it afterwards."""

    class Leaves(Blocks):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            torch.set_grad_enabled(False)
            return super().forward(x)

    model = Leaves(PLAIN, (torch.enable_grad, nullcontext), PLAIN)
    parallel = spread(model, X, copy=True)
    for module in (model, parallel):
        torch.set_grad_enabled(True)
        outputs = module(X)
        assert not torch.is_grad_enabled()
        assert [output.requires_grad for output in outputs] == [False, True, False, False]
    torch.set_grad_enabled(True)


def test_a_mode_has_a_program_of_its_own_and_no_call_has_one() -> None:
    parallel = spread(Blocks(NO_GRAD, PLAIN, AUTOCAST), X)
    for _ in range(3):
        for caller in CALLERS.values():
            with caller():
                parallel(X)
    assert programs(parallel) == len(CALLERS)


# -- other switches --------------------------------------------------------------------------------------------------


class Switched(nn.Module):
    """A branch in which something is switched, beside two ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 6)
        self.beside = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        return self.after(self.switched(self.before(x))) + self.beside(x)

    def switched(self, h: Tensor) -> Tensor:
        """What happens to (batch, 6)."""
        raise NotImplementedError


class PerSample(Switched):
    def switched(self, h: Tensor) -> Tensor:
        return torch.vmap(lambda row: row.sum() * self.after(row))(h)


class InnerGradient(Switched):
    def switched(self, h: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (self.after(y) ** 2).sum())(h)


class Tangent(Switched):
    def switched(self, h: Tensor) -> Tensor:
        return torch.func.jvp(torch.sin, (h,), (torch.ones_like(h),))[1]


class Curvature(Switched):
    def switched(self, h: Tensor) -> Tensor:
        return h + torch.func.hessian(lambda y: (y**3).sum())(h).sum((0, 1))


class Written(Switched):
    """Rows that are written in place inside of a vmap, and read outside."""

    def switched(self, h: Tensor) -> Tensor:
        rows = h.clone()
        torch.vmap(lambda row: row.add_(1))(rows)
        return rows * 2


class Kernel(Switched):
    def switched(self, h: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(h[None, None], h[None, None], h[None, None])[0, 0]


class Deterministic(Switched):
    def switched(self, h: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        found = h.cumsum(0)
        torch.use_deterministic_algorithms(False)
        return found


class DefaultDtype(Switched):
    def switched(self, h: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        ones = torch.ones(6)
        torch.set_default_dtype(torch.float32)
        return (h + ones).float()


class Straddling(Switched):
    """Blocks of modes that begin before a switch, and end between it and the next."""

    def switched(self, h: Tensor) -> Tensor:
        with torch.no_grad(), autocast():
            first = self.after(h)
            torch.use_deterministic_algorithms(True)
            second = first @ first.T
        third = self.after(h)
        torch.use_deterministic_algorithms(False)
        return self.after(third) + second.float().sum()


OF_THREAD = (PerSample, InnerGradient, Tangent, Curvature, Written)
OF_PROCESS = (Kernel, Deterministic, DefaultDtype, Straddling)


def switches() -> tuple[Any, ...]:
    """What may be switched, as it is."""
    kernels = torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()
    levels = torch._C._functorch.peek_interpreter_stack()
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    return torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), kernels, levels, modes


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, when it differentiates forward
@pytest.mark.parametrize("kind", [*OF_THREAD, *OF_PROCESS])
def test_what_has_no_form_as_a_mode_is_one_op(kind: type[Switched]) -> None:
    """Equal in values and gradients, beside branches on other lanes; nothing stays switched, traced or run."""
    model, before = kind(), switches()
    parallel: Parallel = spread(model, X, lanes=2, copy=True)
    assert switches() == before
    (region,) = (op for op in parallel.graph.ops if op.target == "run_region")
    alone = any(access.resource == "*" for access in region.accesses)
    assert alone == (kind in OF_PROCESS), "what is switched for the whole process has nothing beside it"
    for caller in (nullcontext, torch.no_grad):
        outputs, gradients = look(_Wrapped(model), caller)
        found, others = look(_Wrapped(parallel), caller)
        assert switches() == before
        assert_same(outputs, found)
        assert_near(gradients, others, 1e-6)


class CastsAgain(Switched):
    """A weight that has other data in a second block of autocast."""

    def switched(self, h: Tensor) -> Tensor:
        kept = self.after.bias.data + 1
        with autocast():
            first = self.after(h)
        self.after.bias.data = self.after.bias.data + 0.5
        with autocast():
            second = self.after(h)
        self.after.bias.data = kept
        return first.float() + second.float()


class CastsAgainWithin(CastsAgain):
    """The same within what runs as one op."""

    def switched(self, h: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().switched(h)


@pytest.mark.parametrize("kind", [CastsAgain, CastsAgainWithin])
def test_casts_go_with_their_block(kind: type[CastsAgain]) -> None:
    """A lane counts as a block of autocast, so that the second block, and the next call, had the first one's cast."""
    model = kind()
    parallel = spread(model, X, lanes=2, copy=True)
    assert any(op.target == "run_region" for op in parallel.graph.ops) == (kind is CastsAgainWithin)
    for _ in range(3):
        assert_same(model(X), parallel(X))


class _Wrapped(nn.Module):
    """A tuple of one output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Maps what the module maps."""
        return (self.module(x),)


def test_a_switch_that_stays() -> None:
    """It holds for the ops after it, as in eager, and for the caller."""

    class Stays(Switched):
        def switched(self, h: Tensor) -> Tensor:
            torch.set_default_dtype(torch.float64)
            return h

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.ones(6)

    parallel = partition(Stays(), ["cpu:0", "cpu:1"], example_inputs=X, check=False)
    torch.set_default_dtype(torch.float32)
    assert parallel(X).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)


class Breaks(Switched):
    """Fails in the middle of a transform, under deterministic algorithms and autocast."""

    def switched(self, h: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        with autocast():
            found = torch.vmap(lambda row: act(row, 0) * 2)(h)
        torch.use_deterministic_algorithms(False)
        return found.float()


def test_an_error_in_the_middle_puts_everything_back() -> None:
    """As the ``with`` blocks of eager would. A level that stayed open would change what every later op does."""
    model, before = Breaks(), switches()
    with acting(0, lambda: None):
        parallel = spread(model, X, lanes=2)
        wanted = copy.deepcopy(model)(X)
    torch.use_deterministic_algorithms(False)
    with acting(0, lambda: 1 / 0), pytest.raises(ZeroDivisionError):
        parallel(X)
    assert switches() == before
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0
    with acting(0, lambda: None):
        assert_same(wanted, parallel(X))
