"""How one thing is put back as it is now: a tensor, a stream in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from partitioner.model.storage import parts, version_of


def stream_undo(stream: Any) -> Callable[[], None]:
    """Puts back what a stream in memory holds, and its place."""
    written, place = stream.getvalue(), stream.tell()

    def undo() -> None:
        stream.seek(0)
        stream.truncate()
        stream.write(written)
        stream.seek(place)

    return undo


def tensor_undo(tensor: torch.Tensor) -> Callable[[], None]:
    """Puts back a tensor's value, its gradient, and whether it needs one."""
    version, needs, history = version_of(tensor), tensor.requires_grad, tensor.grad_fn
    alias, value, grad = tensor.detach(), tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    grads = None if grad is None else grad.detach().clone()

    def undo() -> None:
        with torch.no_grad():
            if tensor.grad_fn is not history:  # what was written to it had a history
                tensor.detach_()
            if tensor.layout is torch.strided and (tensor.shape != alias.shape or tensor.data_ptr() != alias.data_ptr()):
                tensor.data = alias
            if version_of(tensor) != version or not all(map(torch.equal, parts(alias), parts(value))):
                tensor.detach().copy_(value)
                if version >= 0:  # a backward that is still to come asks whether what it has kept was written since
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
            if tensor.is_leaf and tensor.requires_grad != needs:
                tensor.requires_grad_(needs)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad
            if grad is not None and grads is not None:
                grad.copy_(grads)

    return undo
