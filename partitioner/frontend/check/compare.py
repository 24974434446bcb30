"""Does what will be called compute what the model computes? Call both and compare.

The proof of the last step, from a call to its result: Dynamo's guards and bytecode, the program, its lanes. Both are called on
the examples and then on a second draw of the same shapes: outputs, buffers afterwards and, where gradients are enabled,
gradients. Both start from one random state, and all state is put back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only

from partitioner.errors import InputError, PartitionerError
from partitioner.frontend.check.unlike import unlike
from partitioner.model.call import Call, on_examples
from partitioner.model.keep import objects_kept, state_kept
from partitioner.model.modes import threads, uncached
from partitioner.model.state import lies_on_meta

Run = Callable[..., Any]

ROUNDING = 10.0
"""How many times as far as eager with one thread from eager with several a result may lie. Models without training amplify
rounding: EfficientNet-B4's outputs of up to 690 differ by 11 between the two."""


@dataclass(frozen=True)
class Outcome:
    """What one call gave: flat outputs, buffers afterwards, gradients of parameters and inputs (``None``: backward failed).

    ``attached`` says of each output and buffer whether it needs a gradient.
    """

    outputs: list[Any]
    structure: TreeSpec
    attached: dict[str, bool]
    buffers: dict[str, torch.Tensor]
    gradients: list[torch.Tensor | None] | None

    def values(self) -> dict[str, Any]:
        """All that can differ, by what a message calls it."""
        return {
            **{f"output {number}": each for number, each in enumerate(self.outputs)},
            **{f"whether {name} needs a gradient": each for name, each in self.attached.items()},
            **{f"buffer {name}": each for name, each in self.buffers.items()},
            **{f"gradient {number}": each for number, each in enumerate(self.gradients or ())},
        }


@dataclass(frozen=True)
class Outcomes:
    """What two calls gave, one after the other, and what else of the model they changed."""

    calls: list[Outcome]
    changed: list[str]


def compare(module: nn.Module, call: Call, run: Run, plainly: Run | None = None) -> str | None:
    """Compare ``run`` with the module's forward on the call's inputs and then on a second draw of the same shapes.

    The second call follows on the first, so that state which a forward carries from call to call shows.

    Args:
        module: the model; its state and the random generators are put back.
        call: the example inputs.
        run: what will be called in the place of forward.
        plainly: the same on one thread, for the first call, which has a backward: lanes may sum gradients in another order.

    Returns:
        The first difference, in one line. Costs two calls of each, and a backward of each where gradients are enabled.

    Raises:
        InputError: the model fails on the call.
    """
    draws = [list(call.tensors), [redraw(tensor) for tensor in call.tensors]]
    wanted = eager(module, call, draws)
    found = _found(module, call, [plainly or run, run], draws[: len(wanted.calls)])
    difference = found if isinstance(found, str) else _first_difference(wanted, found)
    if difference is None or _first_difference(wanted, eager(module, call, draws)) is not None:
        return None  # what is not the same in two runs of eager cannot be compared
    if isinstance(found, str):
        return difference
    with threads(1 if torch.get_num_threads() > 1 else 2), uncached():
        rounded = eager(module, call, draws)
    return _first_difference(wanted, found, rounded)


def _found(module: nn.Module, call: Call, runs: Sequence[Run], draws: Sequence[Sequence[torch.Tensor]]) -> Outcomes | str:
    """What the runs give, or how they fail."""
    try:
        return _calls(module, call, runs, draws)
    except PartitionerError:
        raise
    except Exception as error:  # any op may raise anything
        return f"the program fails: {type(error).__name__}: {error}"


def _first_difference(wanted: Outcomes, found: Outcomes, rounded: Outcomes | None = None) -> str | None:
    """The first difference that is more than rounding, as far as ``rounded`` shows it: the model's own, computed otherwise."""
    if len(found.calls) < len(wanted.calls):
        return "a second call: eager takes it, the program does not"
    others = [*(rounded.calls if rounded is not None else ()), None, None]
    differences = (differs(*outcomes) for outcomes in zip(wanted.calls, found.calls, others, strict=False))
    if (difference := next(filter(None, differences), None)) is not None:
        return difference
    lost = sorted(set(wanted.changed) ^ set(found.changed))  # attributes; buffers have been compared by value
    return f"attributes: not both change {', '.join(lost[:3])}" if lost else None


def eager(module: nn.Module, call: Call, draws: Sequence[Sequence[torch.Tensor]]) -> Outcomes:
    """What the model itself gives.

    Raises:
        InputError: it fails on the first draw, the example inputs; that is the caller's to mend.
    """
    with on_examples(module):
        return _calls(module, call, [module.forward] * len(draws), draws)


def is_meta(module: nn.Module, call: Call) -> bool:
    """Whether there are no values to compare."""
    return lies_on_meta(module) or any(tensor.is_meta for tensor in call.tensors)


def redraw(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same shape: floats are negated and shuffled, anything else is shuffled; a sparse one is negated.

    Shuffling keeps every value in the domain that the example had: indices stay valid, masks stay masks.
    """
    if (
        tensor.is_nested
        or tensor.is_quantized
        or tensor.is_mkldnn
        or (tensor.dtype.itemsize == 1 and tensor.is_floating_point())
    ):
        return tensor.detach().clone()  # few ops take these
    if tensor.layout is not torch.strided:
        return -tensor.detach() if tensor.is_floating_point() else tensor.detach().clone()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(tensor.device)
    shuffled = tensor.detach().reshape(-1)[order].reshape(tensor.shape)
    return -shuffled if tensor.is_floating_point() else shuffled


def _calls(module: nn.Module, call: Call, runs: Sequence[Run], draws: Sequence[Sequence[torch.Tensor]]) -> Outcomes:
    """Call a run on each draw, with gradients on the first; a later draw that is outside of its domain ends the list.

    Raises:
        Exception: whatever the first call raises.
    """
    calls: list[Outcome] = []
    with state_kept(module) as changed, _same_numbers():
        for run, tensors in zip(runs, draws, strict=False):
            try:
                with objects_kept(call.leaves):  # each run is given what the first was
                    calls.append(_one_call(module, call, run, tensors, gradients=not calls))
            except PartitionerError:
                raise
            except Exception:
                if not calls:
                    raise
                break
    return Outcomes(calls, changed)


@contextmanager
def _same_numbers() -> Iterator[None]:
    """Every generator from a seed, and put back: torch's on all devices, Python's, numpy's."""
    accelerator = torch.accelerator.current_accelerator()
    devices = range(torch.accelerator.device_count()) if accelerator is not None else ()
    kind = "cpu" if accelerator is None else accelerator.type
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices), device_type="cuda" if kind == "cpu" else kind):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


def _one_call(module: nn.Module, call: Call, run: Run, tensors: Sequence[torch.Tensor], gradients: bool) -> Outcome:
    inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
    given = [new if old.is_leaf else new.view_as(new) for new, old in zip(inputs, tensors, strict=True)]
    args, kwargs = call.fill(given)
    outputs, structure = _flat(run(*args, **kwargs), type(module).__name__)
    found = _gradients(module, inputs, outputs) if gradients and torch.is_grad_enabled() else []
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    named = [*((f"output {number}", leaf) for number, leaf in enumerate(outputs)), *module.named_buffers()]
    attached = {name: isinstance(leaf, torch.Tensor) and leaf.requires_grad for name, leaf in named}
    seen = tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), outputs)
    return Outcome(seen, structure, attached, buffers, found)


def _flat(result: Any, name: str) -> tuple[list[Any], TreeSpec]:
    try:
        return tree_flatten(result)
    except RecursionError:
        raise InputError(
            f"the result of {name} holds itself, so it cannot be compared with eager; partition the model without example "
            "inputs, or with check=False"
        ) from None


def _gradients(module: nn.Module, inputs: list[torch.Tensor], outputs: list[Any]) -> list[torch.Tensor | None] | None:
    roots = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.is_nested]
    wanted = [tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad]
    if not roots or not wanted:
        return []
    # Weights that differ from entry to entry, so that swapped or transposed values do not cancel.
    weights = [torch.linspace(0.5, 1.5, root.numel(), device=root.device).to(root.dtype).reshape(root.shape) for root in roots]
    try:
        return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
    except Exception:  # a backward of the user's own may raise anything, and a model in eval mode need not have one
        return None


def differs(wanted: Outcome, found: Outcome, rounded: Outcome | None = None) -> str | None:
    """The first difference between two runs, less what is `ROUNDING` for ``rounded``."""
    if not _alike(wanted.structure, found.structure):
        shapes = (shorten(str(each.structure), 200) for each in (wanted, found))
        return "outputs: {} in the model, {} in the program".format(*shapes)
    if wanted.gradients is not None and (found.gradients is None or len(found.gradients) != len(wanted.gradients)):
        return "gradients: backward runs through the model, and not alike through the program"
    mine, theirs, other = wanted.values(), found.values(), rounded.values() if rounded is not None else {}
    for what in dict.fromkeys([*mine, *(f"buffer {name}" for name in found.buffers)]):
        detail = unlike(mine.get(what), theirs.get(what))
        if detail is not None and not _is_rounding(mine.get(what), theirs.get(what), other.get(what)):
            return f"{what}: {detail}"
    return None


def _is_rounding(mine: Any, theirs: Any, other: Any) -> bool:
    """Whether two tensors differ little more than the model makes them differ, by other threads and casts that are not kept."""
    if not all(isinstance(each, torch.Tensor) and _is_dense(each) for each in (mine, theirs, other)):
        return False
    if not mine.shape == theirs.shape == other.shape or not mine.dtype == theirs.dtype == other.dtype:
        return False
    own, apart = (float((each.double() - mine.double()).abs().max()) for each in (other, theirs))
    return apart <= ROUNDING * own


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested


def _alike(mine: TreeSpec, theirs: TreeSpec) -> bool:
    """Whether two results have the same structure."""
    try:
        return bool(mine == theirs)
    except Exception:  # keys of dictionaries may be tensors, or compare as they like
        return mine.num_leaves == theirs.num_leaves
