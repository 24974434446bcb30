"""What libraries that are installed do with models, each found with one of theirs and told here in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from partitioner import partition
from partitioner.errors import DifferenceError
from partitioner.frontend.rewrite.higher_order import as_plain_calls

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Doubler:
    """Notes what it was given last, but not for a tracer: tensordict does so with its parameters, their caches and locks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            setattr(self, self.name, x.shape)
        return x * 2


class Skipping:
    """Reads a mode before each call, and puts it back: tensordict decorates the forward of its modules with such objects."""

    __module__ = "pytest"

    def __call__(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x * 2
        self.prev = torch.is_grad_enabled()
        return x * 2


class Doubling(nn.Module):
    def __init__(self, double: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.double = nn.Linear(4, 4), double

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = self.double(self.layer(x))
        return doubled


@pytest.mark.parametrize("double", [Doubler("_last"), Skipping()])
def test_what_a_library_keeps_for_itself_and_not_while_it_is_traced_is_not_compared(double: Callable[[Tensor], Tensor]) -> None:
    """Losses and actors of torchrl were refused, for what tensordict notes of caches, locks and modes."""
    model = Doubling(double)
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, tune=False)
    assert torch.equal(parallel(X), model(X)) and parallel.graph.ops


def test_what_users_may_read_is_compared_although_it_is_not_for_tracers() -> None:
    with pytest.raises(DifferenceError, match=r"not both change double\.last"):
        partition(Doubling(Doubler("last")), ["cpu:0", "cpu:1"], example_inputs=X)


class Tried(nn.Module):
    """Python decides inside of a block in which Dynamo cannot go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        y = y.relu()
        try:
            if y.sum() > 0:
                y = y * 2
        finally:
            y = y + 1
        return y


def test_a_forward_that_goes_on_without_a_graph_says_so() -> None:
    """Of normflows and gpytorch only the first lines were a graph, of which the summary did not say that it is not all."""
    model = Tried()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, tune=False)
    assert torch.equal(parallel(X), model(X))
    assert "Python goes on after this graph, as it is:\n    what follows cannot be traced, nor gone on with" in str(parallel)


def test_a_size_that_the_tracer_reads_off_a_gradients_stride_is_read_off_its_size() -> None:
    """A neural flow of zuko finds a root in an autograd function, whose backward asks for the batch's size.

    Dynamo took it from the stride of the gradient, as if that were laid out as the result. Behind a sum the gradient's strides
    are 0, and of a contiguous one it is 1: an error in the second batch size, or a size that is broadcast without a word.
    """
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(4, 5).t(), symbolic_context=context)
    graph = fx.Graph()
    gradient = graph.placeholder("gradient")
    batch = graph.call_function(torch.ops.aten.sym_stride.int, (gradient, 1))
    gradient.meta["example_value"], batch.meta["example_value"] = fake, fake.stride(1)
    graph.output(batch)
    body = fx.GraphModule(nn.Module(), graph)
    assert body(torch.ones(7, 4)) == 1
    as_plain_calls(body)
    assert body(torch.ones(7, 4)) == body(torch.ones(()).expand(7, 4)) == 7


class Hiding(nn.Module):
    """Tells an optimizer of what it trains alone, and takes fewer arguments than torch's own: so do all losses of torchrl."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.target = nn.Linear(4, 4), nn.Linear(4, 4)

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:  # type: ignore[override]
        named = super().named_parameters(prefix, recurse)
        return ((name, parameter) for name, parameter in named if not name.startswith("target"))

    def forward(self, x: Tensor) -> Tensor:
        return (self.net(x) - self.target(x).detach()).square().mean()


def test_state_that_a_class_does_not_tell_an_optimizer_of_is_state() -> None:
    """Losses of torchrl were refused with a raw `TypeError`: their `named_parameters` takes no ``remove_duplicate``."""
    model = Hiding()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, tune=False)
    assert torch.equal(parallel(X), model(X))
    assert [name for name, _ in parallel.named_parameters()] == ["net.weight", "net.bias"]
    assert {"target.weight", "net.weight"} <= {*parallel.graph.states.values()}
