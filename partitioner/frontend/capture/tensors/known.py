"""Values that Python asks of tensors, where they can be told before the call, so that no graph has to end.

    rates = torch.linspace(0, 0.5, 3).tolist()          of constants: [0.0, 0.25, 0.5] in every call
    if (mask == causal).all(): ...                      of the call's: one program if so, and another one if not

Dynamo ends a graph wherever Python reads a tensor. Here the ops that lead to such a one, and those that write to it, are run
once while it is traced, if they draw no random numbers. What is made of constants alone is what it is. What is made of inputs
and buffers by a few ops is found only where one graph must be all of the call, and only to decide what runs: before each
further call these ops are run again, on the CPU, and the program is taken if they decide as they did.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import ConstantVariable, TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.frontend.capture.amended import amends, method_of_tensors
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import found_at, look_at, name_of
from partitioner.frontend.capture.tensors.checks import check_at, checked
from partitioner.model.inplace import writes_in_place
from partitioner.model.node import target_name

MOST = 32
"""Of how many ops a value may be made: those of a decision are run again in each call."""

_CPU = torch.device("cpu")
_JUMPS = [code for name, code in dis.opmap.items() if "JUMP" in name and name.endswith(("TRUE", "FALSE", "OR_POP"))]
_KINDS: list[Any] = [kind for kind in vars(symbolic_convert).values() if isinstance(kind, type)]


@amends(*method_of_tensors("item"))
def _item(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any, **options: Any) -> Any:
    found = None if arguments or options else _found(tx, self, self.dtype is torch.bool)
    return plain(self, tx, *arguments, **options) if found is None else VariableTracker.build(tx, found.item())


@amends(*method_of_tensors("tolist"))
def _tolist(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    found = _found(tx, self)
    return plain(self, tx) if found is None else VariableTracker.build(tx, found.tolist())


def _jump(plain: Callable[..., Any], tx: Any, instruction: Any) -> Any:
    """A jump on a tensor is one on a truth value, if that can be told; what is only checked there is an op of the graph."""
    asked = tx.stack[-1]
    if not isinstance(asked, TensorVariable) and not _is_read(asked):
        return plain(tx, instruction)
    check = check_at(tx, instruction, _on_cpu(asked.as_proxy().node))
    found = _found(tx, asked, check is None) if isinstance(asked, TensorVariable) else None
    if found is not None and found.numel() == 1:
        tx.stack[-1] = known = ConstantVariable.create(bool(found))
        plain(tx, instruction)
        if instruction.opname.endswith("OR_POP") and tx.stack and tx.stack[-1] is known:
            tx.stack[-1] = asked  # in Python 3.11 what ``or`` has asked is what it gives
    elif check is not None:
        tx.output.create_proxy("call_function", checked, (tx.pop().as_proxy(), check.wanted, *check.error), {})
        if check.jumps:
            tx.jump(instruction)
    else:
        plain(tx, instruction)


def _is_read(asked: Any) -> bool:
    """Whether something is a number that an op has read of a tensor."""
    return isinstance(asked, SymNodeVariable) and bool(free_unbacked_symbols(asked.sym_num))


for _kind in _KINDS:
    for _code in _JUMPS if "dispatch_table" in vars(_kind) else ():
        amends(_kind.dispatch_table, _code)(_jump)


def _on_cpu(node: fx.Node) -> bool:
    """Whether a value, or what a number was read of, lies on the CPU."""
    value = node.meta.get("example_value")
    return value.device == _CPU if isinstance(value, Tensor) else all(map(_on_cpu, node.all_input_nodes))


def _found(tx: Any, asked: Any, decides: bool = False) -> Tensor | None:
    """What a tensor that is being traced holds, if that can be told.

    Args:
        tx: the tracer.
        asked: the tensor.
        decides: whether no more is asked of it than a truth value.
    """
    node = asked.as_proxy().node
    if node.graph is not tx.output.root_tracer.graph:
        return None  # it is part of another op
    calls = _calls(node, decides and HERE.whole and not HERE.once)
    leaves = [each for each in node.graph.nodes if each in calls and each.op not in _CALLS]
    if not calls or (leaves and any(_may_write(each) and not _writes_fresh(each) for each in node.graph.nodes)):
        return None
    exact = not asked.dtype.is_floating_point and not asked.dtype.is_complex
    codes = [code for code in map(_code_of, leaves) if code is not None]
    decision = _Decision(_extracted(node, calls, _CPU if leaves or exact else None), tuple(codes))
    try:
        with _Drawless():  # type: ignore[no-untyped-call]
            found = decision.value(HERE.scope)
    except Exception:  # it cannot be told, for whatever reason
        return None
    if leaves:
        decision.then = bool(found)
        HERE.decisions[decision.key] = decision
    return found


def _code_of(leaf: fx.Node) -> CodeType | None:
    """Where a frame has an input: no parameter, for these are many and lie on their devices."""
    given = leaf.meta.get("grapharg")
    code, value = found_at("" if given is None else name_of(given.source), HERE.scope)
    return None if isinstance(value, nn.Parameter) else code


@dataclass(eq=False)
class _Decision:
    """Ops that decide which program is taken: the condition that they decide as they did.

    Args:
        run: the ops, of values of the frame.
        codes: what these are called there.
        then: what was decided.
    """

    run: fx.GraphModule
    codes: tuple[CodeType, ...]
    then: bool = False

    @property
    def key(self) -> Any:
        return self.run.code, self.codes

    def value(self, scope: Mapping[str, Any]) -> Tensor:
        given = [look_at(code, scope) for code in self.codes]
        with torch.no_grad():
            found: Tensor = _Alike(self.run).run(*(value.cpu() if isinstance(value, Tensor) else value for value in given))
        return found

    def __call__(self, scope: dict[str, Any]) -> bool:
        try:
            return bool(self.value(scope)) is self.then
        except Exception:  # the program is not taken; what is wrong is found when another one is traced
            return False


_CALLS = ("call_function", "call_method")


def _calls(node: fx.Node, may_decide: bool) -> set[fx.Node]:
    """All that a value depends on so far: what it is made of, and what may write to that, with what these are made of.

    Nothing, if that is too much, or an input that may not decide is among it.
    """
    found, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if len(found) > MOST or (each.op not in _CALLS and not may_decide):
            return set()
        fresh = {*each.all_input_nodes, *filter(_may_write, _made_of(each))} - found
        found |= fresh
        waiting += fresh
    return found


def _made_of(node: fx.Node) -> Iterator[fx.Node]:
    """Everything that takes a value, or what was made of it."""
    found, waiting = {node}, [node]
    while waiting:
        fresh = [user for user in waiting.pop().users if user not in found]
        found.update(fresh)
        waiting += fresh
        yield from fresh


def _may_write(node: fx.Node) -> bool:
    """Whether a call may write to what it is given: in place, to ``out`` or statistics, or as no function of torch's."""
    if node.op not in _CALLS or node.target is checked:
        return False
    known = isinstance(node.target, str) or (getattr(node.target, "__module__", None) or "torch").startswith(_HOMES)
    asked = node.kwargs.get("out") is not None or target_name(node) in _STATISTICS or node.target is setattr
    return asked or not known or writes_in_place(node)


def _writes_fresh(node: fx.Node) -> bool:
    """Whether a call in place writes to what has just been made from nothing, and so to no input."""
    made = node.args[0] if node.args else None
    return isinstance(made, fx.Node) and made.target in _MAKERS and node.kwargs.get("out") is None and writes_in_place(node)


_MAKERS = frozenset(getattr(torch, kind + like) for kind in ("zeros", "ones", "full", "empty") for like in ("", "_like"))
_HOMES = ("torch", "_operator", "builtins")
_STATISTICS = ("batch_norm", "instance_norm")


def _extracted(node: fx.Node, calls: set[fx.Node], where: torch.device | None) -> fx.GraphModule:
    """A graph of some calls, on one device if that is given."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for each in (each for each in node.graph.nodes if each in calls):
        copied = copies[each] = graph.node_copy(each, copies.__getitem__)
        traced = each.meta.get("example_value")
        copied.meta = {"dtype": traced.dtype} if isinstance(traced, Tensor) else {}
        if where is not None:
            copied.args, copied.kwargs = fx.node.map_aggregate((copied.args, copied.kwargs), lambda a: _moved(a, where))
    graph.output(copies[node])
    return fx.GraphModule({}, graph)


def _moved(argument: Any, where: torch.device) -> Any:
    return where if isinstance(argument, torch.device) else argument


class _Alike(fx.Interpreter):
    """Runs a graph whose tensors must have the dtypes with which they were traced: autocast, too, is a matter of dtypes."""

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        if n.meta.get("dtype") not in (None, getattr(found, "dtype", None)):
            raise TypeError(f"{n} is of another dtype than while it was traced")
        return found


class _Drawless(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets no op draw random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise TypeError(f"{func} draws random numbers")
        return func(*args, **(kwargs or {}))
