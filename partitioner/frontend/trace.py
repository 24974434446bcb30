"""A model's graphs: of one call, of each that the tracer finds later, and of the view without a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

from torch import nn

from partitioner.errors import DifferenceError, TraceError
from partitioner.frontend.analysis.build import Traced, build_graph
from partitioner.frontend.analysis.view import view_graph
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.capture.symbolic import capture_symbolic
from partitioner.frontend.check.compare import compare, is_meta
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.check.picked import at_picked_sizes
from partitioner.frontend.rewrite.landing import land
from partitioner.ir.machine import Machine
from partitioner.model.call import Call, Planned, end_here
from partitioner.model.keep import state_kept
from partitioner.model.modes import modes_here
from partitioner.model.state import all_state


def view_of(model: nn.Module) -> Traced:
    """What can be seen of a model without a call.

    Raises:
        TraceError: torch.fx cannot see it.
    """
    return view_graph(*capture_symbolic(model), model)


def graph_of(model: nn.Module, found: Found, *, between: bool = False, alike: bool = False, **options: Any) -> Traced:
    """The Graph of a torch.fx graph that was found in ``model``; options are those of `build_graph`.

    If Python goes on ``between`` graphs of several devices, its results are brought together. Sizes that follow from values are
    those of the call, unless it is to be ``alike`` on ranks with other values.
    """
    if between:
        land(found.module, ends=not found.reason)
    keys: dict[int, str] = {}
    for name, tensor in all_state(model).items():
        keys.setdefault(id(tensor), name)
    traced = build_graph(found, type(model).__name__, keys, _parameters(_method(model, found.function)), **options)
    return traced if alike else at_picked_sizes(traced, found.inputs)


def _method(model: nn.Module, name: str) -> Callable[..., Any]:
    """A method of a model by the name of its code; forward if there is none. To look a property up would run it."""
    held = inspect.getattr_static(model, name, None)
    if isinstance(held, FunctionType | staticmethod | classmethod) or name in vars(model):
        return getattr(model, name)  # type: ignore[no-any-return]
    return model.forward


def home(machine: Machine, origin: str) -> str | None:
    """Where everything is taken to lie while tracing; ``None`` for where it is.

    That is where the model came from, for its forward may name that device, or make tensors on it without a name. But what the
    accelerator's autocast makes of its values, its Python may ask.

    Args:
        machine: what is planned for.
        origin: torch device from which the model came.
    """
    first = machine.lanes[0]
    if machine.on_cpus:
        return None
    _, _, autocast, _ = modes_here()
    return first.torch_device if (first.kind, True) in ((kind, enabled) for kind, enabled, _ in autocast) else origin


def _parameters(method: Callable[..., Any]) -> list[str]:
    """Names of a method's positional parameters."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]


def graphs_of_call(
    model: nn.Module, call: Call, *, whole: bool, check: bool, apart: bool = False
) -> list[tuple[Traced, Found]]:
    """The graphs of one call, where state lies at the moment, each with what was found.

    Args:
        model: left as it was.
        call: example arguments.
        whole: whether one graph must be all of forward.
        check: run them, and compare them with the model. Otherwise only the first graph is found, and nothing runs; but all of
            them, by running them, where they are several and each has a say in where state goes.
        apart: whether their ops may be placed on several devices.

    Returns:
        An empty list if the model has no ops.

    Raises:
        TraceError, DifferenceError, InputError: nothing could be traced; it computes something else; the model fails.
    """
    graphs: list[tuple[Traced, Found]] = []
    between = apart and not whole
    runs = (check or between) and not is_meta(model, call)

    def receive(found: Found) -> Callable[..., Sequence[Any]]:
        traced = graph_of(model, found, between=between, apart=apart)
        graphs.append((traced, found))
        return (lambda *arguments: interpret(traced.graph, arguments)) if runs else end_here

    method = compiled(model, receive, whole=whole, apart=apart)
    if check and runs:
        hold_against_eager(model, call, method)
    else:
        args, kwargs = call.fill(call.tensors)
        with suppress(Planned), state_kept(model, *(call.leaves if runs else ())):
            method(*args, **kwargs)
    if not graphs and method.reasons:
        raise TraceError(
            f"nothing of {type(model).__name__} could be traced. {'; '.join(dict.fromkeys(method.reasons.values()))}"
        )
    return graphs


def hold_against_eager(
    model: nn.Module, call: Call, run: Callable[..., Any], plainly: Callable[..., Any] | None = None
) -> None:
    """Raise if ``run`` does not compute what the model computes."""
    difference = compare(model, call, run, plainly)
    if difference is not None:
        raise DifferenceError(f"the programs of {type(model).__name__} do not compute what it computes. {difference}")
