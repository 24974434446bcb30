"""Modes and options that change what a forward does: set by the caller, by forward itself, or read by whatever name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, program, raised, rand, two


@program(Towers)
def no_grad_then_grad(run: Run) -> Steps:
    with torch.no_grad():
        yield run(rand())
    yield run.learn(rand(grad=True))
    with torch.no_grad():
        yield run(rand(grad=True))


@program(Towers)
def inference_mode_then_grad(run: Run) -> Steps:
    with torch.inference_mode():
        result = run(rand())
        yield result.is_inference(), result.clone()
    yield run.learn(rand(grad=True))
    with torch.inference_mode():
        yield run(rand(2, 4)).clone()


@program(Towers)
def autocast_then_not(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield run.learn(rand())
    yield run.learn(rand())


@program(Towers)
def autocast_first(run: Run) -> Steps:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield run.learn(rand())
    with torch.autocast("cpu", dtype=torch.float16):
        yield run(rand())
    with torch.autocast("cpu", enabled=False):
        yield run.learn(rand())


@program(two(lambda self, x: self.left(x) @ self.right(x).T))
def autocast_without_its_cache(run: Run) -> Steps:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        yield run.learn(rand())


def _tells_modes(self: nn.Module, x: Tensor) -> tuple[Tensor, tuple[object, ...]]:
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    return (self.left(x) if modes[0] else self.right(x)), (*modes, torch.get_autocast_dtype("cpu"), torch.get_default_dtype())


@program(two(_tells_modes))
def modes_that_forward_reads(run: Run) -> Steps:
    yield run(rand())
    with torch.no_grad():
        yield run(rand())
    with torch.inference_mode():
        result, modes = run(rand())
        yield result.clone(), modes
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield run(rand())


is_on, grad_mode = torch.is_grad_enabled, torch._C.is_grad_enabled


@program(two(lambda self, x: self.left(x) * (2 if is_on() else 3) + self.right(x) * (5 if grad_mode() else 7)))
def modes_read_by_other_names(run: Run) -> Steps:
    yield run(rand())
    with torch.no_grad():
        yield run(rand())


@program(two(lambda self, x: self.left(x) + torch.zeros(4) + torch.tensor(0.1) + torch.arange(4) / 3))
def default_dtype(run: Run) -> Steps:
    yield run(rand())
    torch.set_default_dtype(torch.float64)
    yield run(rand())
    torch.set_default_dtype(torch.float32)
    yield run(rand())


@program(two(lambda self, x: (self.left(x) + torch.zeros(4), torch.ones(2).device, torch.empty(3).is_meta)), bare=False)
def default_device(run: Run) -> Steps:
    yield run(rand())
    with torch.device("cpu"):
        yield run(rand())
    with torch.device("meta"):
        yield raised(lambda: run(rand()))
    yield run(rand())


@program(two(lambda self, x: self.left(x) * (2 if torch.are_deterministic_algorithms_enabled() else 3) + self.right(x)))
def deterministic_algorithms(run: Run) -> Steps:
    yield run(rand())
    torch.use_deterministic_algorithms(True)
    yield run(rand())
    torch.use_deterministic_algorithms(False)
    yield run(rand())


@program(two(lambda self, x: self.left(x) * torch.get_num_threads() + self.right(x)))
def number_of_threads(run: Run) -> Steps:
    """Lanes share the cores, but forward may ask how many threads the caller has."""
    yield run(rand())
    torch.set_num_threads(2)
    yield run(rand())
    torch.set_num_threads(1)
    yield run(rand())


@program(two(lambda self, x: torch.sqrt(self.left(x) * 0) + self.right(x)))
def anomaly_detection(run: Run) -> Steps:
    with torch.autograd.set_detect_anomaly(True):
        yield raised(lambda: run.learn(rand()))
    yield run.learn(rand())


@program(two(lambda self, x: self.left(x) + self.right(x)))
def saved_tensors_hooks_of_the_caller(run: Run) -> Steps:
    count = [0, 0]

    def pack(tensor: Tensor) -> Tensor:
        count[0] += 1
        return tensor * 2

    def unpack(tensor: Tensor) -> Tensor:
        count[1] += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield run.learn(rand(grad=True)), [number > 0 for number in count]
    yield run.learn(rand(grad=True))


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.relu else result


@program(two(lambda self, x: torch.relu(self.left(x)) + self.right(x)))
def function_mode_of_the_caller(run: Run) -> Steps:
    yield run(rand())
    with Doubling():
        yield run(rand())
    yield run(rand())


@program(two(lambda self, x: torch.relu(self.left(x)) + self.right(x)))
def function_mode_at_the_first_call(run: Run) -> Steps:
    with Doubling():
        yield run(rand())
    yield run(rand())


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return function(*args, **(kwargs or {}))


@program(two(lambda self, x: torch.relu(self.left(x)) + self.right(x)))
def dispatch_mode_of_the_caller(run: Run) -> Steps:
    yield run(rand())
    with Counting() as mode:
        yield run(rand()), mode.count > 2
    yield run(rand())


@program(two(lambda self, x: self.left(x) + self.right(x)))
def flop_counter(run: Run) -> Steps:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        yield run(rand())
    yield counter.get_total_flops()


@program(two(lambda self, x: self.left(x) + self.right(x)))
def multithreading_of_autograd_off(run: Run) -> Steps:
    with torch.autograd.set_multithreading_enabled(False):
        yield run.learn(rand(grad=True))
    with torch.autograd.grad_mode.set_grad_enabled(not run.training):
        yield run(rand(grad=True))


def _sets_the_mode(self: nn.Module, x: Tensor) -> Tensor:
    result = self.left(x)
    torch.set_grad_enabled(False)
    return result + self.right(x)


@program(two(_sets_the_mode))
def forward_that_leaves_gradients_off(run: Run) -> Steps:
    yield run(rand(grad=True)), torch.is_grad_enabled()
    yield run(rand(grad=True)), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield run(rand(grad=True)), torch.is_grad_enabled()


@program(two(lambda self, x: self.left(x) @ self.right(x).T))
def matmul_precision(run: Run) -> Steps:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield run(rand())
    torch.set_float32_matmul_precision(before)
    yield run(rand())


@program(Towers)
def modes_nested_and_left_by_an_exception(run: Run) -> Steps:
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            yield run(rand())
            raise KeyError("out")
    except KeyError:
        pass
    yield run.learn(rand())
