"""What else an input tensor has beside its shape: strides, offset, memory format, dtype, wish for a gradient, class, names."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, program, raised, rand, two


@program(two(lambda self, x: (self.left(x) + self.right(x), x.is_contiguous(), x.stride())))
def transposed_input(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(4, 3).T)
    yield run(rand(3, 8)[:, ::2])
    yield run(rand(1, 4).expand(3, 4))


@program(two(lambda self, x: (self.left(x) + self.right(x)) if x.is_contiguous() else self.left(x)), lambda: rand(4, 3).T)
def branch_on_contiguity(run: Run) -> Steps:
    for x in (rand(4, 3).T, rand(), rand(3, 8)[:, ::2], rand(6, 4)[::2]):
        yield run.learn(x)


@program(two(lambda self, x: self.left(x).view(-1) + self.right(x).t().contiguous().t().reshape(-1)))
def views_of_results(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(4, 3).T)


@program(two(lambda self, x: x.view(-1) * 2), bare=False)
def view_that_strides_forbid(run: Run) -> Steps:
    yield run(rand())
    yield raised(lambda: run(rand(4, 3).T))


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


@program(Channels, lambda: rand(2, 2, 4, 5))
def channels_last_input(run: Run) -> Steps:
    yield run.learn(rand(2, 2, 4, 5))
    yield run.learn(rand(2, 2, 4, 5).to(memory_format=torch.channels_last))
    run.module.to(memory_format=torch.channels_last)
    yield run.learn(rand(2, 2, 4, 5))


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: rand(grad=True))
def gradient_wanted_and_not(run: Run) -> Steps:
    for wanted in (True, False, True):
        yield run.learn(rand(grad=wanted))


@program(two(lambda self, x: (self.left(x) if x.requires_grad else self.right(x)) * 2))
def branch_on_requires_grad(run: Run) -> Steps:
    for wanted in (False, True, False):
        yield run.learn(rand(grad=wanted))


@program(
    two(lambda self, x: (self.left(x) * 2, x.is_leaf, x.grad_fn is None, x.grad is None)),
    limit="while tracing, no tensor has a history",
)
def input_with_a_history(run: Run) -> Steps:
    x = rand(grad=True)
    yield run(x)
    yield run(x * 2)
    x.grad = torch.ones_like(x)
    yield run(x)


@program(Towers)
def doubles_then_floats(run: Run) -> Steps:
    yield run.learn(rand())
    yield raised(lambda: run.learn(rand(dtype=torch.float64)))
    run.module.double()
    yield run.learn(rand(dtype=torch.float64))
    run.module.float()
    yield run.learn(rand())


@program(two(lambda self, x: self.left(x * 1.0) + self.right(x / 2)))
def whole_numbers_as_input(run: Run) -> Steps:
    yield run(rand())
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.int32):
        yield run(torch.arange(12).view(3, 4).to(dtype))


@program(two(lambda self, x, scale: self.left(x) * scale + self.right(x) + scale), rand, lambda: torch.tensor(2.0))
def tensor_without_dimensions_then_number(run: Run) -> Steps:
    """A tensor of no dimensions takes part in dtype promotion as a number does, and yet is no number."""
    for scale in (torch.tensor(2.0), torch.tensor(2.0, dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)):
        yield run.learn(rand(), scale)
    for number in (2.0, 2, True, np.float64(2.0), 1 + 0j):
        yield run(rand(), number)


@program(two(lambda self, x: self.left(x) + self.right(x)))
def parameter_as_input(run: Run) -> Steps:
    yield run(rand())
    yield run.learn(nn.Parameter(rand()))


@program(two(lambda self, x: (self.left(x), type(x).__name__, isinstance(x, nn.Parameter))))
def class_of_an_input(run: Run) -> Steps:
    yield run(rand())
    yield run(nn.Parameter(rand()))
    yield run(nn.Buffer(rand()))


@program(two(lambda self, x: self.left(x) + self.right(x).sum(0)))
def input_from_numpy(run: Run) -> Steps:
    array = rand(4, 4).numpy()
    yield run(torch.from_numpy(array))
    array[:] = 2
    yield run(torch.from_numpy(array[::2]))
    yield raised(lambda: run(array))


@program(two(lambda self, x: self.left(x) + self.right(x)))
def input_at_an_offset(run: Run) -> Steps:
    base = rand(7, 4)
    for start in range(4):
        yield run.learn(base[start : start + 3])
    yield run(base.view(-1)[1:13].view(3, 4))


@program(two(lambda self, x: (self.left(x), x.storage_offset(), x.data_ptr() == x.untyped_storage().data_ptr())))
def offset_that_forward_reads(run: Run) -> Steps:
    base = rand(7, 4)
    yield run(base[:3])
    yield run(base[2:5])


@program(two(lambda self, x: (x.conj() @ x.T, x.real + self.left(x.real), x.imag, x.is_conj())), lambda: rand(3, 4) + 1j)
def conjugated_input(run: Run) -> Steps:
    yield run(rand(3, 4) + 1j)
    yield run((rand(3, 4) + 1j).conj())
    yield run(torch.view_as_complex(rand(3, 4, 2)))


@program(two(lambda self, x: self.left(x) + self.right(x)))
def pinned_and_shared_input(run: Run) -> Steps:
    yield run(rand().share_memory_())
    yield run(rand().clone(memory_format=torch.preserve_format))


@program(two(lambda self, x: self.left(x) + self.right(x)))
def inference_tensor_as_input(run: Run) -> Steps:
    with torch.inference_mode():
        x = rand()
    with torch.no_grad():
        yield run(x)
    yield raised(lambda: run(x))


@program(two(lambda self, x: self.left(x) + self.right(x) * (x._version > 0)))
def version_of_an_input(run: Run) -> Steps:
    """How often a tensor was written is a number that Python can read."""
    x = rand()
    yield run(x)
    x.add_(1)
    yield run(x)
