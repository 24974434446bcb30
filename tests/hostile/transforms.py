"""Transforms of functions, compilers and partitions around the module and inside of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from partitioner import partition

from .program import Run, Steps, Towers, Two, program, rand, two


def _weights(run: Run) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in run.module.named_parameters()}


@program(Two)
def functional_call_with_other_weights(run: Run) -> Steps:
    yield run.learn(rand())
    other = {name: value * 2 for name, value in _weights(run).items()}
    yield functional_call(run.module, other, (rand(),))
    yield functional_call(run.module, {"left.weight": torch.ones(4, 4)}, (rand(2, 4),))
    yield run(rand())


@program(Towers)
def functional_call_with_buffers(run: Run) -> Steps:
    yield run(rand())
    buffers = {name: buffer.clone() + 1 for name, buffer in run.module.named_buffers()}
    yield functional_call(run.module, (_weights(run), buffers), (rand(),)), buffers
    yield dict(run.module.named_buffers())


@program(Two)
def functional_call_that_learns(run: Run) -> Steps:
    weights = {name: value.requires_grad_() for name, value in _weights(run).items()}
    result = functional_call(run.module, weights, (rand(),))
    yield torch.autograd.grad(result.sum(), list(weights.values()), create_graph=True)


@program(Two)
def vmap_over_the_module(run: Run) -> Steps:
    yield vmap(run.module)(rand(5, 3, 4))
    yield vmap(run.module, in_dims=1, out_dims=1)(rand(3, 5, 4))
    yield run(rand())


@program(Towers)
def vmap_with_random_numbers(run: Run) -> Steps:
    run.module.norm.eval()
    yield vmap(run.module, randomness="different")(rand(5, 3, 4))
    yield vmap(run.module, randomness="same")(rand(5, 3, 4))


@program(Two)
def grad_of_the_module(run: Run) -> Steps:
    yield grad(lambda x: run.module(x).sum())(rand())
    yield grad_and_value(lambda weights, x: functional_call(run.module, weights, (x,)).sum())(_weights(run), rand())
    yield run.learn(rand())


@program(Two)
def gradients_of_each_sample(run: Run) -> Steps:
    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(run.module, weights, (x.unsqueeze(0),)).square().sum()

    yield vmap(grad(loss), in_dims=(None, 0))(_weights(run), rand())


@program(Two)
def jacobians_and_hessians(run: Run) -> Steps:
    x = rand(4)
    yield jacrev(run.module)(x), jacfwd(run.module)(x), hessian(lambda y: run.module(y).sum())(x)


@program(Two)
def products_with_jacobians(run: Run) -> Steps:
    yield jvp(run.module, (rand(),), (rand(seed=4),))
    result, pull = vjp(run.module, rand())
    yield result, pull(torch.ones_like(result))


@program(Two)
def forward_mode(run: Run) -> Steps:
    from torch.autograd import forward_ad

    yield run(rand())
    with forward_ad.dual_level():
        result = run.module(forward_ad.make_dual(rand(), rand(seed=4)))
        yield tuple(forward_ad.unpack_dual(result))
    yield run(rand())


def _transforms_inside(self: nn.Module, x: Tensor) -> Tensor:
    slopes = vmap(grad(lambda row: self.left(row).sin().sum()))(x)
    return slopes + vmap(self.right)(x)


@program(two(_transforms_inside))
def vmap_and_grad_inside(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(5, 4))


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.models = [Two() for _ in range(3)]
        self.base = [copy.deepcopy(self.models[0]).to("meta")]
        stacked, _ = stack_module_state(self.models)
        self.stacked = nn.ParameterDict({name.replace(".", "_"): value.detach() for name, value in stacked.items()})

    def forward(self, x: Tensor) -> Tensor:
        weights = {name.replace("_", ".", 1): value for name, value in self.stacked.items()}
        return vmap(lambda one: functional_call(self.base[0], one, (x,)))(weights)


@program(Ensemble)
def ensemble_of_stacked_models(run: Run) -> Steps:
    yield run.learn(rand())


def _functional_inside(self: nn.Module, x: Tensor) -> Tensor:
    doubled = {name: parameter * 2 for name, parameter in self.left.named_parameters()}
    return functional_call(self.left, doubled, (x,)) + self.right(x)


@program(two(_functional_inside))
def functional_call_inside(run: Run) -> Steps:
    yield run.learn(rand())


def _compiler(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend of `torch.compile` that does nothing."""
    return graph.forward


@program(Towers)
def compiled_around(run: Run) -> Steps:
    run.module.drop.p = 0.0
    compiled = torch.compile(run.module, backend=_compiler)
    yield compiled(rand())
    yield run(rand())
    yield compiled(rand(2, 4))


class WithCompiledPart(Two):
    def __init__(self) -> None:
        super().__init__()
        self.left = torch.compile(self.left, backend=_compiler)
        self.right.compile(backend=_compiler)


@program(WithCompiledPart)
def compiled_parts(run: Run) -> Steps:
    yield run.learn(rand()), list(run.module.state_dict())
    yield run.learn(rand(2, 4))


@program(lambda: torch.compile(Two(), backend=_compiler), limit="keys are those of the model inside of torch.compile")
def compiled_model(run: Run) -> Steps:
    yield run.learn(rand()), list(run.module.state_dict())
    yield run.learn(rand(2, 4))


class WithPartitionedPart(Two):
    def __init__(self) -> None:
        super().__init__()
        self.left = partition(Two(), ["cpu:0", "cpu:1"], example_inputs=(rand(),), grain=0)


@program(WithPartitionedPart)
def partitioned_parts(run: Run) -> Steps:
    yield run.learn(rand()), list(run.module.state_dict())
    yield run.learn(rand(2, 4))
    run.module.train(not run.module.training)
    yield run.learn(rand())


@program(lambda: partition(Two(), ["cpu:0", "cpu:1"], example_inputs=(rand(),), grain=0))
def partitioned_model(run: Run) -> Steps:
    yield run.learn(rand()), list(run.module.state_dict())
    yield run.learn(rand(2, 4))


@program(Two)
def partitioned_a_second_time(run: Run) -> Steps:
    """The model of a partitioned module, partitioned again: both go on."""
    yield run(rand())
    again = partition(run.model, ["cpu:0", "cpu:1"], example_inputs=(rand(),), grain=0)
    yield again(rand()), run(rand())
    with torch.no_grad():
        run.module.left.weight.fill_(1)
    yield again(rand()), run(rand())


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))


@program(Two)
def part_of_another_model(run: Run) -> Steps:
    torch.manual_seed(3)
    model = Around(run.module)
    yield model(rand()), list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(rand()).sum().backward()
    optimizer.step()
    yield model(rand()), run(rand())
    model.eval()
    yield run.module.training


@program(Two)
def wrapped_in_data_parallel(run: Run) -> Steps:
    wrapped = nn.DataParallel(run.module)
    yield wrapped(rand()), list(wrapped.state_dict())


@program(Two)
def traced_by_others(run: Run) -> Steps:
    yield torch.fx.symbolic_trace(run.module)(rand())
    yield torch.jit.trace(run.module, (rand(),), check_trace=False)(rand())
    yield torch.export.export(run.module, (rand(),)).module()(rand())
    yield run(rand())


@program(Two)
def made_into_a_graph_of_small_ops(run: Run) -> Steps:
    from torch.fx.experimental.proxy_tensor import make_fx

    yield make_fx(run.module)(rand())(rand(seed=4))
    yield run(rand())


@program(Two)
def run_on_fake_tensors(run: Run) -> Steps:
    from torch._subclasses.fake_tensor import FakeTensorMode

    yield run(rand())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = run.module(mode.from_tensor(rand()))
        yield type(result).__name__, tuple(result.shape)
    yield run(rand())
