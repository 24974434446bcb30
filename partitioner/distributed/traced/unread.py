"""A value that transformers of torch read from a tensor in Python, where a graph would end, and need not read: whether their
mask is the causal one. It is a hint, for the mask itself says so; taken is what ``is_causal`` says. Attention is equal to
rounding. And what a library logs once in a process, as transformers of Hugging Face's do in their first loss: none of the steps
would say it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from torch.nn.modules import transformer

from partitioner.frontend.capture.amended import amended

LOGGED = "ignore_logging_functions" if hasattr(config, "ignore_logging_functions") else "ignore_logger_methods"
"""What older versions of torch call it."""


def unread(model: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Blocks in which a call of a model is looked at: its transformers do not look at their masks, and nothing is logged once.

    Every step of a job has one, so that the model's layers are gone through here, and not there.
    """
    attends = any(isinstance(each, nn.TransformerEncoder | nn.TransformerDecoder) for each in model.modules())
    methods = {each for name, each in vars(logging.Logger).items() if name.endswith("_once")}
    return partial(_unread, attends, methods)


@contextmanager
def _unread(attends: bool, methods: Set[Any]) -> Iterator[None]:
    masks = amended(transformer, _detect_is_causal_mask=_is_causal) if attends else nullcontext()
    with masks, config.patch({LOGGED: {*getattr(config, LOGGED), *methods}}):
        yield


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
