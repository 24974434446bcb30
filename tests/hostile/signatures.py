"""How forward takes its arguments, and how they are given."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from .program import Run, Steps, program, raised, rand, two


def _keyword_only(self: nn.Module, x: Tensor, *, scale: float = 2.0, mask: Tensor | None = None) -> Tensor:
    result = self.left(x) * scale + self.right(x)
    return result if mask is None else result * mask


@program(two(_keyword_only))
def keyword_only(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), scale=3.0)
    yield run.learn(x=rand(), mask=torch.ones(4))
    yield raised(lambda: run(rand(), 3.0))
    yield raised(lambda: run(rand(), scal=3.0))
    yield raised(lambda: run())


def _positional_only(self: nn.Module, x: Tensor, scale: float = 2.0, /, **rest: Any) -> Tensor:
    return self.left(x) * scale + self.right(x) * rest.get("scale", 1.0)


@program(two(_positional_only))
def positional_only(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), 3.0)
    yield run.learn(rand(), scale=5.0)
    yield raised(lambda: run(x=rand()))


def _any_number(self: nn.Module, *tensors: Tensor, **named: Tensor) -> Tensor:
    return self.left(torch.stack(tensors).sum(0)) + sum(self.right(named[key]) * len(key) for key in named)


@program(two(_any_number), rand, lambda: rand(seed=4))
def any_number_of_arguments(run: Run) -> Steps:
    yield run.learn(rand(), rand(seed=4))
    yield run.learn(rand())
    yield run.learn(rand(), other=rand(), another=rand(seed=5))
    yield run.learn(rand(), another=rand(seed=5), other=rand())


def _clashing(self: nn.Module, input: Tensor, torch: float, C: float = 1.0, R: float = 2.0, S: float = 3.0) -> Tensor:
    return self.left(input) * torch + self.right(input) * C + R - S


@program(two(_clashing), rand, lambda: 2.0)
def names_that_generated_code_may_use(run: Run) -> Steps:
    yield run.learn(rand(), 2.0)
    yield run.learn(input=rand(), torch=3.0, S=5.0)


def _more_clashing(self: nn.Module, args: Tensor, kwargs: Tensor, fn: int = 1, inputs: int = 2, module: int = 3) -> Tensor:
    state, graph, tree, lane, lanes, out, result, l_x_, arg0_1 = range(9)
    return (
        self.left(args) * fn
        + self.right(kwargs) * inputs
        + module
        + state
        + graph
        + tree
        + lane
        + lanes
        + out
        + result
        + l_x_
        + arg0_1
    )


@program(two(_more_clashing), rand, rand)
def more_names_that_may_clash(run: Run) -> Steps:
    yield run.learn(rand(), rand(seed=4))
    yield run.learn(kwargs=rand(), args=rand(seed=4), fn=5)


def _own_names(this: nn.Module, self: Tensor, /, model: float = 2.0, call: float = 1.0, training: bool = True) -> Tensor:
    return this.left(self) * model + this.right(self) * call + training


@program(two(_own_names))
def self_is_an_input(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), 3.0, call=5.0, training=False)


def _unicode(self: nn.Module, größe: Tensor, λ: float = 2.0) -> Tensor:
    return self.left(größe) * λ + self.right(größe)


@program(two(_unicode))
def names_in_other_alphabets(run: Run) -> Steps:
    yield run.learn(größe=rand())
    yield run.learn(rand(), λ=3.0)


def _by_any_name(self: nn.Module, x: Tensor, **options: float) -> Tensor:
    return self.left(x) * options.get("lambda", 1.0) + self.right(x) * options.get("not a name", 1.0)


@program(two(_by_any_name))
def keywords_that_are_no_names(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), **{"lambda": 2.0, "not a name": 3.0})


@program(two(_by_any_name), kwargs={"x": rand, "lambda": lambda: 2.0})
def example_with_a_keyword_that_is_no_name(run: Run) -> Steps:
    yield run.learn(x=rand(), **{"lambda": 2.0})
    yield run.learn(rand(), **{"class": 2.0})


def _mutable_default(self: nn.Module, x: Tensor, found: list[float] = []) -> Tensor:  # noqa: B006
    found.append(1.0)
    return self.left(x) * sum(found) + self.right(x)


def _with_mutable_default() -> nn.Module:
    _mutable_default.__defaults__[0].clear()
    return two(_mutable_default)()


@program(_with_mutable_default)
def mutable_default(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand()), list(_mutable_default.__defaults__[0])


TABLE = torch.ones(4)


def _tensor_default(self: nn.Module, x: Tensor, shift: Tensor = TABLE) -> Tensor:
    return self.left(x) + shift * self.right(x)


def _with_tensor_default() -> nn.Module:
    TABLE.fill_(1)
    return two(_tensor_default)()


@program(_with_tensor_default)
def tensor_as_default(run: Run) -> Steps:
    yield run.learn(rand())
    TABLE.fill_(2)
    yield run.learn(rand())
    yield run.learn(rand(), torch.zeros(4))


def _default_changed(self: nn.Module, x: Tensor, scale: float = 2.0) -> Tensor:
    return self.left(x) * scale + self.right(x)


@program(two(_default_changed))
def defaults_replaced(run: Run) -> Steps:
    try:
        yield run(rand())
        _default_changed.__defaults__ = (5.0,)
        yield run(rand())
    finally:
        _default_changed.__defaults__ = (2.0,)


@program(two(_default_changed))
def default_given_or_left_out(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(), 2.0)
    yield run(rand(), scale=2.0)
    yield run(x=rand(), scale=2)
    yield run(rand(), torch.tensor(2.0))
    yield raised(lambda: run(rand(), None))


class Options(TypedDict, total=False):
    scale: float
    shift: Tensor


def _unpacked(self: nn.Module, x: Tensor, **options: Unpack[Options]) -> Tensor:
    return self.left(x) * options.get("scale", 1.0) + options.get("shift", 0) + self.right(x)


@program(two(_unpacked))
def options_of_a_typed_dict(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), scale=2.0, shift=torch.ones(4))
    yield run.learn(rand(), shift=torch.ones(3, 4))


@program(two(lambda self: self.left.weight * 2 + self.right.weight), kwargs={})
def no_arguments(run: Run) -> Steps:
    if not run.module.left.weight.isnan().any():
        yield run.learn()
        yield raised(lambda: run(rand()))


@program(two(lambda self, x=None: self.left.weight if x is None else self.right(x)))
def all_arguments_optional(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn()
    yield run.learn(None)
    yield run.learn(x=rand())


@program(two(lambda self, x, flag: self.left(x) if flag else self.right(x)), rand, lambda: True)
def flags(run: Run) -> Steps:
    for flag in (True, False, 1, 0, None, [], "text", torch.tensor(True)):
        yield run(rand(), flag)


@program(two(lambda self, x, mode="left": getattr(self, mode)(x)))
def names_of_parts(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(), "right")
    yield raised(lambda: run(rand(), "neither"))
    yield run(rand(), mode="left")


@program(two(lambda self, x, function=torch.relu: function(self.left(x)) + self.right(x)))
def functions_as_arguments(run: Run) -> Steps:
    yield run(rand())
    for function in (torch.tanh, lambda y: y * 2, nn.Sigmoid(), torch.nn.functional.gelu):
        yield run(rand(), function)


@program(two(lambda self, x, part: self.left(x) + part(x)), rand, lambda: nn.Linear(4, 4))
def modules_as_arguments(run: Run) -> Steps:
    torch.manual_seed(3)
    part = nn.Linear(4, 4)
    yield run.learn(rand(), part), part.weight.grad
    yield run.learn(rand(), run.module.left)
    yield run.learn(rand(), nn.Identity())


@program(two(_keyword_only))
def signature_that_is_shown(run: Run) -> Steps:
    yield str(inspect.signature(run.module.forward)), list(inspect.signature(run.module.forward).parameters)
    yield run(rand())
