"""Questions about the process that Dynamo answers for good: its group of processes, the dtypes of autocast.

A group may be made or left after the first call, and `torch.set_autocast_dtype` says which dtype a block has that names none.
Where a frame depends on the answer, the question is asked again before each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.ctx_manager import AutocastModeVariable
from torch._dynamo.variables.torch import BaseTorchVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE, Condition
from partitioner.model.modes import device_types

Question = Callable[[], Any]


def _dtypes() -> Any:
    return tuple(map(torch.get_autocast_dtype, device_types()))


def _group() -> Any:
    return torch.distributed.is_initialized() and (torch.distributed.get_rank(), torch.distributed.get_world_size())


_GROUPED = ("is_initialized", "get_rank", "get_world_size") if torch.distributed.is_available() else ()
_ASKED: dict[Any, Question] = {
    torch.get_autocast_dtype: _dtypes,
    **{getattr(torch.distributed, name): _group for name in _GROUPED},
}
"""Functions that a frame calls, and what is asked again: what holds where the frame begins, and not in its blocks."""

_SWITCHES = frozenset((torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled))
"""Functions that Dynamo takes for ops of the graph. What they switch is a property of ops here, and would be lost."""


def answered_now() -> dict[Question, Any]:
    """The answers to all of these questions."""
    return {question: question() for question in _ASKED.values()}


@amends(BaseTorchVariable, "can_constant_fold_through")
def _asks(plain: Callable[..., bool], self: Any) -> bool:
    if self.value in _SWITCHES:
        raise Unsupported(f"torch.{self.value.__name__} switches what holds after the call, too")
    _note(self.value)
    return plain(self)


@amends(AutocastModeVariable, "enter")
def _enters(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if self.target_values[1] is None:
        _note(torch.get_autocast_dtype)
    return plain(self, *arguments)


def _note(function: Any) -> None:
    """A frame asks one of these questions: it must have the answer in later calls that it has where the frame begins."""
    if function in _ASKED:
        question = _ASKED[function]
        HERE.answers[question] = HERE.now[question]


def answers() -> Iterator[Condition]:
    """The conditions that the answers are what they were."""
    for question, then in HERE.answers.items():
        yield AnswerIs(question, then)


@dataclass(frozen=True)
class AnswerIs:
    """A question about the process, and its answer."""

    question: Question
    then: Any

    def __call__(self, _scope: object) -> bool:
        """Whether it still is."""
        return bool(self.question() == self.then)
