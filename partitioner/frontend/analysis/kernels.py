"""What PyTorch's kernels on the CPU take inside of themselves, which no fake shows: oneDNN's copies of what it convolves.

oneDNN computes on tensors whose channels lie in blocks of 8 or 16. Of plain ones it makes such copies, but for images of three
channels, and of its result a plain copy; formulas follow the order in which it does that, and were held against the allocator.
The factors of the workspace of its LSTM are fitted. A kernel that is not here is taken to need nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from partitioner.model.fakes import bytes_of, number_of

aten = torch.ops.aten

FEWEST_CHANNELS = 4
"""An input of fewer channels is convolved as it lies."""


def hidden_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Bytes that a kernel takes at most while it runs, beyond its result.

    Args:
        func: an ATen op.
        args: its positional arguments; fakes will do.
        result: what it gave.

    Example:
        >>> x, weight = torch.empty(1, 8, 16, 16, dtype=torch.float64), torch.empty(8, 8, 3, 3, dtype=torch.float64)
        >>> args = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        >>> hidden_bytes(aten.convolution.default, args, x) == 8 * 9 * 16 * 16 * 8  # an im2col of all of it
        True
    """
    measure = HIDDEN.get(func)
    if measure is None or any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in args):
        return 0
    return measure(args, result)


def stored_bytes(func: Any, args: Sequence[Any]) -> int:
    """Bytes of the workspace that oneDNN's LSTM keeps for its backward, and of which fakes say that it is empty."""
    if func is not aten.mkldnn_rnn_layer.default or not args[15]:
        return 0
    steps, batch, width, hidden = _recurrent(args)
    return steps * batch * (8 * hidden + 7 * max(width, hidden)) * int(args[0].element_size())


def _convolution(args: Sequence[Any], result: Any) -> int:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = args[:9]
    match _backend(x, weight, bias, stride, padding, dilation, transposed, extra, groups):
        case "Mkldnn" | "MkldnnTranspose":
            taken, kernel, given = bytes_of(x), bytes_of(weight), bytes_of(result)
            if _channels_last(x, weight):
                return kernel
            inputs, outputs = _blocked(x, groups), _blocked(result, groups)
            grown = kernel * inputs * outputs // max(1, taken * given)
            plain = number_of(x.shape[1]) < FEWEST_CHANNELS
            return max((0 if plain else inputs) + grown + outputs - given, outputs)
        case "Slow2d" | "SlowDilated2d":
            return _columns(x, weight, result)
    return 0


def _convolution_backward(args: Sequence[Any], result: Any) -> int:
    gradient, x, weight, _, stride, padding, dilation, transposed, extra, groups = args[:10]
    match _backend(x, weight, None, stride, padding, dilation, transposed, extra, groups):
        case "Mkldnn" | "MkldnnTranspose":
            kernel = bytes_of(weight)
            if _channels_last(x, weight):
                return 2 * kernel
            return max(_blocked(x, groups) + _blocked(gradient, groups), kernel)
        case "Slow2d" | "SlowDilated2d":
            return _columns(x, weight, gradient)
    return 0


def _recurrent_layer(args: Sequence[Any], result: Any) -> int:
    steps, batch, _, hidden = _recurrent(args)
    return 4 * hidden * steps * batch * int(args[0].element_size()) + sum(map(bytes_of, args[1:5]))


def _recurrent_backward(args: Sequence[Any], result: Any) -> int:
    """Fitted, as the workspace is."""
    return 2 * bytes_of(args[7]) + bytes_of(args[0]) + sum(map(bytes_of, args[1:5]))


HIDDEN: Mapping[Any, Callable[[Sequence[Any], Any], int]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mkldnn_rnn_layer.default: _recurrent_layer,
    aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
}
"""The kernels whose insides are known."""


def _backend(*args: Any) -> str:
    """PyTorch's name for what will compute a convolution."""
    return str(torch._C._select_conv_backend(*args, None)).rpartition(".")[2]


def _recurrent(args: Sequence[Any]) -> tuple[int, int, int, int]:
    """Steps, batch, width of the input and of the state."""
    steps, batch, width = map(number_of, args[0].shape)
    return steps, batch, width, number_of(args[10])


def _blocked(tensor: torch.Tensor, groups: int) -> int:
    """Bytes of a tensor with its channels in whole blocks."""
    block, channels = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8, int(number_of(tensor.shape[1]))
    whole = -(-channels // block) * block if groups == 1 else channels
    return bytes_of(tensor) * whole // max(1, channels)


def _channels_last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if layout is None:
        return False
    return any(each.is_contiguous(memory_format=layout) and not each.is_contiguous() for each in (x, weight))


def _columns(x: torch.Tensor, weight: torch.Tensor, result: torch.Tensor) -> int:
    """Bytes of the matrix of all windows (im2col), which a kernel of one element does not need."""
    window = int(math.prod(map(number_of, weight.shape[1:])))
    places = int(math.prod(map(number_of, result.shape))) // max(1, int(number_of(result.shape[1])))
    single = int(math.prod(map(number_of, weight.shape[2:]))) == 1
    return 0 if single else window * places * x.element_size()


def linear_outside(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer as PyTorch computes it where no dispatch mode looks: under one it adds the bias out of place."""
    if bias is None or x.dim() < 3 or x.is_contiguous():
        return torch.nn.functional.linear(x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)
