"""Who is who: `is`, one object twice, equality that is not sameness, classes that say they are equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, rand, two


@program(two(lambda self, x: x))
def input_returned(run: Run) -> Steps:
    x = rand()
    yield run(x) is x
    yield run(x[:2]) is x


@program(two(lambda self, x: (x, self.left(x), [x, x])))
def input_returned_with_others(run: Run) -> Steps:
    x = rand(grad=True)
    result = run(x)
    yield result[0] is x, result[2][0] is result[2][1], result


@program(two(lambda self, x: [self.left(x) + self.right(x)] * 2 + [{"again": x}]))
def result_twice(run: Run) -> Steps:
    first, second, third = run(rand())
    yield first is second, third


def _list_twice(self: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    found = [self.left(x), self.right(x)]
    return found, found


@program(two(_list_twice))
def list_twice(run: Run) -> Steps:
    first, second = run(rand())
    yield first, first is second


@program(two(lambda self, x, y: self.left(x) if x is y else self.right(y)), rand, rand)
def branch_on_sameness(run: Run) -> Steps:
    x = rand()
    yield run.learn(x, rand())
    yield run.learn(x, x)
    yield run.learn(x, x.view(3, 4))


@program(two(lambda self, x, y: self.left(x) if y is None else self.right(y)), rand, lambda: None)
def example_with_none(run: Run) -> Steps:
    yield run(rand(), None)
    yield run(rand(), rand())
    yield run(rand(), None)


@program(
    two(lambda self, x: (self.left.weight is self.right.weight, self.left is self.right, self.left(x))),
    limit="whether two weights are one object is asked once",
)
def sameness_of_weights(run: Run) -> Steps:
    yield run(rand())
    run.module.left.weight = run.module.right.weight
    yield run(rand())
    run.module.left = run.module.right
    yield run(rand())


SENTINEL = object()


@program(two(lambda self, x, scale=SENTINEL: self.left(x) if scale is SENTINEL else self.right(x)))
def sentinel_as_default(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(), SENTINEL)
    yield run(rand(), None)


@program(two(lambda self, x: self.left(x) * self.scale + self.right(x) * 0, scale=0.0))
def zero_and_minus_zero(run: Run) -> Steps:
    """Equal, but their products are not the same."""
    with torch.no_grad():
        yield torch.signbit(run(rand().abs()))
        run.module.scale = -0.0
        yield torch.signbit(run(rand().abs()))
        run.module.scale = 0.0
        yield torch.signbit(run(rand().abs()))


@program(two(lambda self, x, scale: torch.full((4,), scale) + 0 * self.left(x).detach().abs()), rand, lambda: 0.0)
def zero_and_minus_zero_as_arguments(run: Run) -> Steps:
    for scale in (0.0, -0.0, 0.0):
        yield torch.atan2(run(rand(), scale), torch.tensor(-1.0)) if scale else torch.signbit(run(rand(), scale))


@program(two(lambda self, x: torch.full((2,), *self.values) * self.left(x).sum(), values=(2,)))
def whole_and_broken_numbers_in_tuples(run: Run) -> Steps:
    for values in ((2,), (2.0,), (2,), (True,), (1,)):
        run.module.values = values
        yield run(rand())


@program(two(lambda self, x: torch.full((2,), self.value) if x is not None else self.left(x), value=1))
def one_of_three_classes(run: Run) -> Steps:
    """1, 1.0 and True are equal, and make tensors of three dtypes."""
    for value in (1, 1.0, True, 1 + 0j, 1):
        run.module.value = value
        yield run(rand())


@program(two(lambda self, x, value: (torch.full((2,), value), self.left(x))), rand, lambda: 1)
def one_of_three_classes_as_argument(run: Run) -> Steps:
    for value in (1, 1.0, True, 1 + 0j, 1):
        yield run(rand(), value)


@program(two(lambda self, x, value: (value, self.left(x) * value[0])), rand, lambda: (2,))
def tuples_that_are_equal(run: Run) -> Steps:
    for value in ((2,), (2.0,), [2], (2 + 0j,), (True,), torch.Size([2])):
        yield run(rand(), value)


class Everything:
    """Equal to all of its kind, whatever it holds."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@program(two(lambda self, x: self.left(x) * self.config.scale + self.right(x), config=Everything(2.0)))
def attribute_that_equals_all(run: Run) -> Steps:
    for scale in (2.0, 3.0, 2.0):
        run.module.config = Everything(scale)
        yield run.learn(rand())


@program(two(lambda self, x, config: self.left(x) * config.scale + self.right(x)), rand, lambda: Everything(2.0))
def argument_that_equals_all(run: Run) -> Steps:
    for scale in (2.0, 3.0):
        yield run(rand(), Everything(scale))


class Distance(float):
    """A number of its own class."""

    def twice(self) -> float:
        return float(self) * 2


@program(two(lambda self, x: self.left(x) * (self.scale.twice() if hasattr(self.scale, "twice") else self.scale), scale=2.0))
def number_of_its_own_class(run: Run) -> Steps:
    for scale in (Distance(2.0), 2.0, Distance(2.0)):
        run.module.scale = scale
        yield run(rand())


_with_number = two(lambda self, x: self.left(x) * (3 if type(self.scale) is float else 5), scale=2.0)


@program(_with_number)
def class_of_a_number(run: Run) -> Steps:
    yield run(rand())
    run.module.scale = Distance(2.0)
    yield run(rand())


@program(two(lambda self, x: self.left(x) * (2 if self.value == self.value else 3), value=1.0))
def not_a_number(run: Run) -> Steps:
    for value in (1.0, float("nan"), float("inf"), float("nan")):
        run.module.value = value
        yield run(rand())


class Compared(Two):
    """Its own equality: two layers of one shape are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared)

    def __hash__(self) -> int:
        return 7


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Compared(), Compared()

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) - self.second(x) * 2


@program(Pair)
def modules_that_are_equal(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.first = Compared()
    with torch.no_grad():
        run.module.first.left.weight.fill_(2)
    yield run.learn(rand())


@program(two(lambda self, x: (id(x) == self.seen, self.left(x)), seen=0))
def id_of_an_input(run: Run) -> Steps:
    x = rand()
    run.module.seen = id(x)
    yield run(x)
    yield run(rand())


@program(two(lambda self, x: ({x: 1}[x], x in {x}, any(x is y for y in [self.left.weight, x]), self.left(x))))
def tensors_as_keys(run: Run) -> Steps:
    yield run(rand())
