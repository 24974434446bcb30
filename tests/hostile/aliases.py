"""Tensors that share storage: inputs with each other, with weights and buffers, with results; and writes to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, raised, rand, two


class Buffered(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(self.left(x).detach().sum(0))
        return self.right(x) * self.total


@program(Buffered, lambda: torch.ones(4))
def own_buffer_as_input(run: Run) -> Steps:
    """What forward writes is what it was given."""
    yield run(torch.ones(4))
    yield run(run.module.total)
    yield run.learn(rand())
    yield run(run.module.total.view(2, 2).view(1, 4))


@program(two(lambda self, x: self.left(x) + self.right(x)))
def own_weight_as_input(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(run.module.left.weight)
    yield run.learn(run.module.left.weight[:2])
    yield run.learn(run.module.right.weight.detach())


def _writes_one(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    before = self.left(y)
    x.mul_(2)
    return before + self.right(y)


@program(two(_writes_one), rand, lambda: rand(seed=4))
def one_tensor_as_two_inputs(run: Run) -> Steps:
    yield run(rand(), rand(seed=4))
    x = rand()
    yield run(x, x), x
    yield run(rand(), rand(seed=4))


@program(two(_writes_one), rand, lambda: rand(seed=4))
def overlapping_views_as_inputs(run: Run) -> Steps:
    base = rand(7, 4)
    yield run(base[:3], base[4:]), base
    yield run(base[:3], base[2:5]), base
    yield run(base[2:5], base[:3]), base
    yield run(base.view(-1)[2:14].view(3, 4), base[:3]), base


@program(two(_writes_one), rand, lambda: rand(seed=4))
def two_tensors_of_one_array(run: Run) -> Steps:
    array = rand().numpy()
    yield run(rand(), rand(seed=4))
    yield run(torch.from_numpy(array), torch.from_numpy(array)), array.copy()
    yield run(torch.from_numpy(array[:2]), torch.from_numpy(array[1:])), array.copy()


@program(two(_writes_one), rand, lambda: rand(seed=4))
def view_and_its_base(run: Run) -> Steps:
    x = rand()
    yield run(x, x.view(-1).view(3, 4)), x
    yield run(x.detach(), x), x


@program(two(lambda self, x: (self.left(x), x.add_(1), self.right(x))))
def input_written(run: Run) -> Steps:
    x = rand()
    yield run(x), x
    base = rand(4, 3)
    yield run(base.T), base
    wide = rand(6, 4)
    yield run(wide[::2]), wide


@program(two(lambda self, x: x.add_(1).mul_(self.left(x).sum()) if x.sum() is not None else x))
def input_written_and_returned(run: Run) -> Steps:
    x = rand()
    result = run(x.detach())
    yield result, x, result.data_ptr() == x.data_ptr()


@program(two(lambda self, x: (x.add_(1), self.left(x))))
def expanded_input_written(run: Run) -> Steps:
    yield run(rand())
    yield raised(lambda: run(rand(1, 4).expand(3, 4)))


@program(two(lambda self, x: self.left(x.add_(1)) + x))
def leaf_that_must_not_be_written(run: Run) -> Steps:
    yield run(rand())
    yield raised(lambda: run(rand(grad=True)))
    x = rand(grad=True)
    yield run.learn(x * 2), x.grad


def _writes_views(self: nn.Module, x: Tensor) -> Tensor:
    result = self.left(x).clone()
    result[:, 1:3] += self.right(x)[:, :2]
    result.T[0].mul_(2)
    result.view(-1)[::5] = 0
    result.diagonal()[:] = 7
    return result


@program(two(_writes_views))
def views_written_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(5, 4))


def _out_arguments(self: nn.Module, x: Tensor) -> Tensor:
    space = torch.empty(3, 4)
    with torch.no_grad():
        torch.add(self.left(x), 1, out=space)
        torch.mul(self.right(x), space, out=space)
    return space * self.left(x)


@program(two(_out_arguments))
def out_arguments(run: Run) -> Steps:
    yield run.learn(rand())


@program(
    two(lambda self, x, out: torch.add(self.left(x).detach(), self.right(x).detach(), out=out)), rand, lambda: torch.empty(3, 4)
)
def out_argument_of_the_caller(run: Run) -> Steps:
    space = torch.zeros(3, 4)
    result = run(rand(), space)
    yield result, space, result is space
    small = torch.zeros(0)
    run(rand(), small)
    yield small


@program(two(lambda self, x: (x[:2], x.T, x.view(-1), x.detach(), self.left(x))))
def views_of_the_input_returned(run: Run) -> Steps:
    x = rand()
    views = run(x)
    yield views
    x.fill_(3)
    yield views[:4]
    views[0].fill_(5)
    yield x


@program(two(lambda self, x: (self.left.weight, self.left.weight[0], self.right.bias.view(2, 2), self.left(x))))
def weights_returned(run: Run) -> Steps:
    weight, row, view, _ = run.learn(rand())[0]
    yield weight is run.module.left.weight, row, view
    with torch.no_grad():
        run.module.left.weight.fill_(2)
        run.module.right.bias.fill_(3)
    yield row, view


class Returned(Buffered):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.total.add_(1)
        return self.total, self.total[1:], self.left(x) + self.right(x)


@program(Returned)
def buffers_returned(run: Run) -> Steps:
    first, part, _ = run(rand())
    yield first, part, first is run.module.total
    run(rand())
    yield first, part


@program(two(lambda self, x: (lambda y: (y, y[:2], y.view(-1)))(self.left(x) + self.right(x))))
def result_and_its_views(run: Run) -> Steps:
    with torch.no_grad():
        whole, part, flat = run(rand())
        whole.fill_(4)
        yield part, flat
        flat[0] = 9
        yield whole


@program(two(lambda self, x: (self.left(x), self.right(x))))
def results_written_by_the_caller(run: Run) -> Steps:
    """What one call gave must not be what the next one works in."""
    first = run(rand())
    kept = [part.detach().clone() for part in first]
    with torch.no_grad():
        for part in first:
            part.fill_(9)
    yield run(rand()), kept


@program(two(lambda self, x: (self.left(x), self.right(x))))
def results_kept_over_calls(run: Run) -> Steps:
    results = [run(rand(seed=seed)) for seed in range(4)]
    yield results
    if run.training:
        sum(part.sum() for result in results for part in result).backward()


@program(two(lambda self, x: x.detach().mul_(2) + self.left(x.detach()) + self.right(x.data)))
def detached_input_written(run: Run) -> Steps:
    x = rand(grad=True)
    yield run.learn(x), x.detach()


def _swaps(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x.data, y.data = y.data, x.data
    return self.left(x) - self.right(y)


@program(two(_swaps), rand, lambda: rand(seed=4))
def data_of_inputs_swapped(run: Run) -> Steps:
    x, y = rand(), rand(seed=4)
    yield run(x, y), x, y


def _resizes(self: nn.Module, x: Tensor) -> Tensor:
    space = torch.zeros(1)
    space.resize_(3, 4).copy_(self.left(x).detach())
    return space + self.right(x).squeeze_().unsqueeze_(0).transpose_(1, 2)[0].T


@program(two(_resizes))
def shapes_changed_in_place(run: Run) -> Steps:
    yield run.learn(rand())
    yield raised(lambda: run(rand(2, 4)))


@program(two(lambda self, x: self.left(x).relu_() + torch.nn.functional.relu(self.right(x), inplace=True).mul(3).add_(x)))
def results_of_layers_written(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
