"""Names that the package or the tracer uses itself: of attributes, parts, parameters, keys of dicts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, rand

PUBLIC = "plan graph code program placement dag original summary"
HIDDEN = "_original _lock _gate _entries _make _chosen _epoch _tree _last _hooked _programs _compiled _guards _plan _orig_mod"


def _named(
    names: str, make: Callable[[int], object], use: Callable[[nn.Module, str, Tensor], Tensor]
) -> Callable[[], nn.Module]:
    """Builds a model with an attribute of each name, all of them used by forward."""

    class Named(Two):
        def __init__(self) -> None:
            super().__init__()
            for number, name in enumerate(names.split()):
                setattr(self, name, make(number))

        def forward(self, x: Tensor) -> Tensor:
            result = self.left(x) + self.right(x)
            for name in names.split():
                result = use(self, name, result)
            return result

    return Named


def _number(number: int) -> float:
    return 1.0 + number / 8


def _times(module: nn.Module, name: str, x: Tensor) -> Tensor:
    return x * getattr(module, name)


def _through(module: nn.Module, name: str, x: Tensor) -> Tensor:
    return getattr(module, name)(x)


def _parameter(number: int) -> nn.Parameter:
    return nn.Parameter(torch.full((4,), 1.0 + number / 8))


def _change_all(run: Run, names: str, make: Callable[[int], object]) -> Steps:
    yield run.learn(rand())
    for number, name in enumerate(names.split()):
        setattr(run.module, name, make(number + 3))
        yield getattr(run.module, name)
    yield run.learn(rand())


@program(_named(PUBLIC, _number, _times), watch=PUBLIC)
def numbers_with_public_names(run: Run) -> Steps:
    yield from _change_all(run, PUBLIC, _number)


@program(_named(HIDDEN, _number, _times), watch=HIDDEN)
def numbers_with_hidden_names(run: Run) -> Steps:
    yield from _change_all(run, HIDDEN, _number)


@program(_named(PUBLIC, _parameter, _times))
def parameters_with_public_names(run: Run) -> Steps:
    yield from _change_all(run, PUBLIC, _parameter)


@program(_named(PUBLIC, lambda number: nn.Linear(4, 4), _through))
def parts_with_public_names(run: Run) -> Steps:
    yield run.learn(rand()), sorted(name for name, _ in run.module.named_children())
    run.module.plan = nn.Identity()
    yield run.learn(rand())
    run.module.plan.register_forward_hook(lambda m, a, r: r * 2)
    yield run.learn(rand())


@program(_named(HIDDEN, lambda number: nn.Linear(4, 4), _through))
def parts_with_hidden_names(run: Run) -> Steps:
    yield run.learn(rand())


CLASHING = (
    "fn inputs args kwargs out result lane0 t0 torch L self_ tensor device stream event wait copy_0 state model module_ R S C"
)


@program(_named(CLASHING, _parameter, _times))
def parameters_named_as_generated_code_may_be(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(2, 4))


STRANGE = ("with space", "größe", "1", "class", "lambda", "a-b", "__x__", "None", "[0]", "'", "%s", "{0}")


class Strange(Two):
    """Names that are no Python names, which `add_module` and `register_parameter` take."""

    def __init__(self) -> None:
        super().__init__()
        for name in STRANGE:
            self.register_parameter(name, nn.Parameter(torch.ones(4)))
            self.add_module(name + "_part", nn.Linear(4, 4))
            self.register_buffer(name + "_buffer", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        result = self.left(x) + self.right(x)
        for name in STRANGE:
            result = result * self._parameters[name] + getattr(self, name + "_buffer")
            result = self._modules[name + "_part"](result)
        return result


@program(Strange)
def names_that_are_no_names(run: Run) -> Steps:
    yield run.learn(rand())
    yield list(run.module.state_dict())


class Alike(nn.Module):
    """Keys that become one name if dots turn into underscores."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.a_b, self.A = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4), nn.Linear(4, 4)
        self.a.add_module("b", nn.Linear(4, 4))
        self.a_0_weight = nn.Parameter(torch.ones(4))
        self.a_b_weight = nn.Parameter(torch.ones(4))
        self.l_self_modules_a_b = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.a_0_weight + self.a_b(x) * self.a_b_weight + self.A(x) * self.l_self_modules_a_b


@program(Alike)
def names_that_are_nearly_alike(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.no_grad():
        run.module.a_b.weight.fill_(2)
        run.module.a_b_weight.fill_(3)
    yield run.learn(rand())


class forward_(Two):
    """A class whose name is that of a generated function."""

    def forward(self, forward_: Tensor) -> Tensor:
        return self.left(forward_) - self.right(forward_)


@program(forward_)
def class_named_as_generated_code(run: Run) -> Steps:
    yield run.learn(rand())


class Deep(nn.Module):
    """A part with the names of its parents' parts, thirty levels deep."""

    def __init__(self, depth: int = 30) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = Deep(depth - 1) if depth else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.layer(x)))


@program(Deep)
def long_names(run: Run) -> Steps:
    yield run.learn(rand())


@program(_named("train_ eval_ half_ double_ cpu_ apply_ hooks_", _number, _times))
def names_close_to_methods(run: Run) -> Steps:
    yield run.learn(rand())


class Shadowing(Two):
    """Attributes that hide methods of `nn.Module`."""

    def __init__(self) -> None:
        super().__init__()
        self.zero_grad = 2.0
        self.share_memory = torch.ones(4)
        self.extra_repr = "text"

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.zero_grad + self.right(x) * self.share_memory


@program(Shadowing)
def attributes_that_hide_methods(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.zero_grad = 3.0
    yield run.learn(rand()), run.module.zero_grad
