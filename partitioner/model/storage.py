"""The storage of a tensor of any layout: what tells whether two tensors share memory, and how much of it there is."""

from __future__ import annotations

import torch


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a tensor consists of, its values first: itself, unless it is sparse.

    Example:
        >>> [tuple(part.shape) for part in parts(torch.eye(3).to_sparse())]
        [(3,), (2, 3)]
    """
    if tensor.layout is torch.sparse_coo:
        return tensor._values(), tensor._indices()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.values(), tensor.crow_indices(), tensor.col_indices()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.values(), tensor.ccol_indices(), tensor.row_indices()
    return (tensor,)


def storage_key(tensor: torch.Tensor) -> int:
    """What tells storages apart, for tensors of any kind, as long as they are alive."""
    try:
        return int(parts(tensor)[0].untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a wrapper of several tensors, or one of functorch's
        return -id(tensor)


def storage_span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of a tensor's storage; address 0 if it has none, as on the meta device, and in a fake tensor."""
    try:
        storage = parts(tensor)[0].untyped_storage()
        return (0, 0) if storage.device.type == "meta" else (storage.data_ptr(), storage.nbytes())
    except (RuntimeError, NotImplementedError):  # a wrapper of several tensors, or one of functorch's
        return 0, 0


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Size of a tensor's elements in bytes; of a sparse one, of what it holds."""
    return sum(part.numel() * part.element_size() for part in parts(tensor))


def storage_bytes(tensor: torch.Tensor) -> int:
    """Size of the memory that a tensor keeps alive, in bytes."""
    try:
        return sum(part.untyped_storage().nbytes() for part in parts(tensor))
    except (RuntimeError, NotImplementedError):  # a library's own layout, or a wrapper of several tensors
        return tensor_bytes(tensor)


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the elements that it repeats: what a copy of it has to write.

    Example:
        >>> packed(torch.ones(3, 1).expand(3, 4)).shape
        torch.Size([3, 1])
    """
    if 0 not in tensor.stride():
        return tensor
    sizes = [min(size, 1) if stride == 0 else size for size, stride in zip(tensor.size(), tensor.stride(), strict=True)]
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())


def repeats(tensor: torch.Tensor) -> bool:
    """Whether a tensor repeats elements, so that `packed` leaves some out.

    Example:
        >>> repeats(torch.ones(3, 1).expand(3, 4)), repeats(torch.ones(1).expand(1))
        (True, False)
    """
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.size(), strict=True))


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may lie at one address, those that `packed` leaves out aside.

    Example:
        >>> overlaps(torch.ones(3, 1).expand(3, 4)), overlaps(torch.ones(6).unfold(0, 3, 1))
        (False, True)
    """
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if stride == 0 or size <= 1:
            continue
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor lie side by side, in whatever order, each once.

    Example:
        >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 6)[:, ::2]), is_dense(torch.ones(1).expand(3))
        (True, False, False)
    """
    span = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size > 1) + 1
    return not overlaps(tensor) and (tensor.numel() == 0 or span == tensor.numel())


def no_view(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same memory, which autograd takes for no view of the first.

    Example:
        >>> x = torch.zeros(2, requires_grad=True) * 1
        >>> no_view(x)._is_view(), no_view(x) is x
        (False, False)
    """
    made: torch.Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return made


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor's memory was written; -1 for one that was made under inference mode, which does not know.

    Example:
        >>> version_of(torch.zeros(1).add_(1))
        1
    """
    return -1 if tensor.is_inference() else tensor._version


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Say how often a tensor's memory was written: a backward that is still to come asks whether what it keeps was, since.

    Example:
        >>> x = torch.zeros(1).add_(1)
        >>> set_version(x, 0)
        >>> version_of(x)
        0
    """
    if version >= 0:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
