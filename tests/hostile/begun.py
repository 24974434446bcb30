"""Modules that are traced at their first call, and what users do before: moves, hooks, optimizers, other threads, failures."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from .program import Run, Steps, Towers, Two, program, raised, rand


def on_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(raised(call)))
    thread.start()
    thread.join()
    return found[0]


@program(Towers, slow=True)
def cast_before_the_first_call(run: Run) -> Steps:
    run.module.half()
    yield run.learn(rand(dtype=torch.float16, grad=True))
    run.module.double()
    yield run.learn(rand(dtype=torch.float64, grad=True)), raised(lambda: run(rand()))


@program(Towers)
def loaded_and_optimized_before(run: Run) -> Steps:
    run.module.load_state_dict({name: torch.ones_like(value) for name, value in run.module.state_dict().items()})
    optimizer = torch.optim.AdamW(run.module.parameters(), lr=0.1)
    for parameter in run.module.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    for rows in (3, 5):
        optimizer.zero_grad()
        yield run.learn(rand(rows, 4, grad=True))
        optimizer.step()
    yield optimizer.state_dict()


@program(Towers, slow=True)
def copied_before(run: Run) -> Steps:
    twin = copy.deepcopy(run.module)
    yield twin(rand()), run.learn(rand(grad=True))
    third = copy.deepcopy(run.module)
    with torch.no_grad():
        run.module.left.weight.zero_()
    yield twin(rand()), third(rand()), run.learn(rand(5, 4, grad=True))


@program(Towers, slow=True)
def another_thread_calls_first(run: Run) -> Steps:
    def without_gradients() -> Any:
        with torch.no_grad():
            return run(rand())

    yield on_a_thread(without_gradients)
    yield run.learn(rand(grad=True))
    yield on_a_thread(lambda: run.learn(rand(7, 4, grad=True)))


@program(Towers, slow=True)
def first_calls_that_fail(run: Run) -> Steps:
    for args in ((rand(3, 5),), (), (None,), (rand(), 3), ("a",), (torch.ones(3, 4, dtype=torch.int64),)):
        yield raised(lambda args=args: run(*args))
    yield run.learn(rand(grad=True)), raised(lambda: run(rand(3, 5))), run.learn(rand(5, 4, grad=True))


@program(Towers)
def first_call_with_one_row(run: Run) -> Steps:
    """The norm refuses it in training, when the dropout before has drawn."""
    for rows in (1, 3, 2, 1):
        yield raised(lambda rows=rows: run.learn(rand(rows, 4, grad=True)))


@program(Towers, slow=True)
def first_call_with_no_rows(run: Run) -> Steps:
    for rows in (0, 3, 0, 1):
        yield raised(lambda rows=rows: run.learn(rand(rows, 4, grad=True)))


@program(Towers, slow=True)
def first_call_under_other_modes(run: Run) -> Steps:
    with torch.inference_mode():
        result = run(rand())
        yield result, result.is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        yield run.learn(rand(grad=True))
    with torch.autograd.graph.save_on_cpu():
        yield run.learn(rand(grad=True))
    yield run.learn(rand(grad=True))


class MakesNumbers(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.zeros(len(x), 4) + torch.tensor(1.5) + torch.full((4,), 0.5) + self.right(x)


@program(MakesNumbers)
def first_call_under_another_default_dtype(run: Run) -> Steps:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def hooks_given_before(run: Run) -> Steps:
    log: list[str] = []
    module = run.module
    module.left.register_forward_hook(lambda part, args, result: result * 2)
    module.right.register_forward_pre_hook(lambda part, args: (args[0] + 1,))
    module.right.weight.register_hook(lambda gradient: gradient * 3)
    module.head.weight.register_post_accumulate_grad_hook(lambda weight: log.append("added"))
    module.register_state_dict_post_hook(lambda part, state, prefix, local: state.update({f"{prefix}extra": torch.ones(1)}))
    yield run.learn(rand(grad=True)), log, list(module.state_dict())
    yield run.learn(rand(5, 4, grad=True)), log


@program(Towers, slow=True)
def parts_changed_before(run: Run) -> Steps:
    module = run.module
    parametrizations.weight_norm(module.left)
    module.drop = nn.Identity()
    module.norm.requires_grad_(False)
    module.right.bias = module.left.bias
    module.register_buffer("late", torch.ones(3))
    yield run.learn(rand(grad=True)), list(module.state_dict())
    module.train(not run.training)
    yield run.learn(rand(grad=True))


@program(Two, slow=True)
def first_call_within_a_checkpoint(run: Run) -> Steps:
    """Twice, with a call of the plain kind between."""
    for reentrant in (False, None, True):
        x = rand(grad=True)
        result = run(x) if reentrant is None else checkpoint(run.module, x, use_reentrant=reentrant)
        result.sum().backward()
        yield result, x.grad


@program(Towers, slow=True)
def first_call_in_backward(run: Run) -> Steps:
    found: list[Tensor] = []
    x = rand(grad=True) * 2
    x.register_hook(lambda gradient: found.append(run.module(rand())))
    x.sum().backward()
    yield found, run.learn(rand(grad=True))


@program(Towers, slow=True)
def first_call_with_other_weights(run: Run) -> Steps:
    doubled = {name: weight.detach() * 2 for name, weight in run.module.named_parameters()}
    yield torch.func.functional_call(run.module, doubled, (rand(),))
    yield run.learn(rand(grad=True)), torch.func.functional_call(run.module, doubled, (rand(5, 4),))
