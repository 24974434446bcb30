"""Kinds of tensors and values: other dtypes, sparse, quantized, nested, packed, meta, subclasses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from .program import Run, Steps, Two, program, raised, rand, two


@program(two(lambda self, x: torch.fft.ifft(torch.fft.fft(self.left(x)) * (1 + 2j)) + self.right(x)))
def complex_numbers_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run(rand(2, 4))


class ComplexWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x).conj() + self.left(x).real


@program(ComplexWeights, lambda: rand() + 1j)
def complex_weights(run: Run) -> Steps:
    yield run.learn(rand() + 1j)
    yield run.learn((rand() + 2j).conj())


@program(two(lambda self, x: torch.sparse.mm(x, self.left.weight) + self.right(x.to_dense())), lambda: torch.eye(4).to_sparse())
def sparse_input(run: Run) -> Steps:
    yield run.learn(torch.eye(4).to_sparse())
    yield run(torch.eye(4).to_sparse_csr())
    yield run(torch.zeros(4, 4).to_sparse())


@program(two(lambda self, x: ((self.left(x) > 0).float() * self.right(x)).to_sparse()))
def sparse_result(run: Run) -> Steps:
    with torch.no_grad():
        yield run(rand()).coalesce()
        yield run(rand(5, 4)).coalesce()


class SparseState(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(3).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, self.left(x)) + self.right(x)


@program(SparseState)
def sparse_buffer(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.adjacency = torch.ones(3, 3).to_sparse()
    yield run.learn(rand())


def _quantizes(self: nn.Module, x: Tensor) -> Tensor:
    small = torch.quantize_per_tensor(self.left(x).detach(), 0.1, 3, torch.quint8)
    return small.dequantize() + self.right(x)


@program(two(_quantizes))
def quantized_inside(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


@program(
    two(lambda self, x: self.left(x.dequantize()) + self.right(x.dequantize())),
    lambda: torch.quantize_per_tensor(rand(), 0.1, 3, torch.quint8),
)
def quantized_input(run: Run) -> Steps:
    yield run(torch.quantize_per_tensor(rand(), 0.1, 3, torch.quint8))
    yield run(torch.quantize_per_tensor(rand(), 0.2, 1, torch.quint8))


@program(two(lambda self, x: self.left(x).to(torch.float8_e4m3fn).float() + self.right(x)))
def float8_inside(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


@program(two(lambda self, x: self.left(x.float()) + self.right(x.float())), lambda: rand().to(torch.float8_e5m2))
def float8_input(run: Run) -> Steps:
    yield run(rand().to(torch.float8_e5m2))
    yield run(rand().to(torch.float8_e4m3fn))
    yield run(rand())


@program(Two, lambda: rand())
def meta_input(run: Run) -> Steps:
    yield run(rand())
    yield raised(lambda: run(torch.empty(3, 4, device="meta")))
    yield run.learn(rand())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.GRU(4, 3), nn.LSTM(4, 3)

    def forward(self, packed: PackedSequence) -> tuple[PackedSequence, Tensor]:
        right, _ = pad_packed_sequence(self.right(packed)[0])
        return self.left(packed)[0], right


def _packed(*lengths: int) -> PackedSequence:
    return pack_sequence([rand(length, 4, seed=length) for length in lengths], enforce_sorted=False)


@program(Recurrent, lambda: _packed(3, 2))
def packed_sequences(run: Run) -> Steps:
    for lengths in ((3, 2), (1, 4), (2, 2, 2)):
        yield run(_packed(*lengths))


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.GRU(4, 3, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.left(packed)[0], batch_first=True, total_length=x.shape[1])
        return padded + self.right(x)


@program(Packing, lambda: rand(2, 3, 4), lambda: torch.tensor([3, 2]))
def packing_inside(run: Run) -> Steps:
    yield run.learn(rand(2, 3, 4), torch.tensor([3, 2]))
    yield run.learn(rand(2, 3, 4), torch.tensor([1, 3]))


def _nested(*lengths: int, layout: torch.layout = torch.jagged) -> Tensor:
    return torch.nested.nested_tensor([rand(length, 4, seed=length) for length in lengths], layout=layout)


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: _nested(2, 3))
def jagged_input(run: Run) -> Steps:
    with torch.no_grad():
        for lengths in ((2, 3), (1, 4), (2, 2, 2)):
            yield list(run(_nested(*lengths)).unbind())


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: _nested(2, 3, layout=torch.strided))
def nested_input(run: Run) -> Steps:
    with torch.no_grad():
        yield list(run(_nested(2, 3, layout=torch.strided)).unbind())


class Labelled(Tensor):
    """A class of tensors that goes through ops, and carries a text."""

    label: str

    @staticmethod
    def of(data: Tensor, label: str) -> Labelled:
        made = data.as_subclass(Labelled)
        made.label = label
        return made


@program(two(lambda self, x: self.left(x) + self.right(x)))
def subclass_as_input(run: Run) -> Steps:
    yield run(rand())
    yield run(Labelled.of(rand(), "a"))
    yield type(run(Labelled.of(rand(), "b"))).__name__


@program(two(lambda self, x: self.left(x) * (2 if getattr(x, "label", "") == "a" else 3)), lambda: Labelled.of(rand(), "a"))
def attribute_of_a_tensor(run: Run) -> Steps:
    for label in ("a", "b", "a"):
        yield run(Labelled.of(rand(), label))
    x = rand()
    x.label = "a"
    yield run(x)


class Logged(Tensor):
    """Overrides what functions do with it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function is torch.nn.functional.linear else result


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: rand().as_subclass(Logged))
def subclass_that_overrides_functions(run: Run) -> Steps:
    yield run(rand().as_subclass(Logged))
    yield run(rand())


class SubclassWeight(Two):
    def __init__(self) -> None:
        super().__init__()
        self.left.weight = nn.Parameter(self.left.weight.detach().as_subclass(Logged))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


@program(SubclassWeight)
def weight_of_a_subclass(run: Run) -> Steps:
    yield run(rand())


DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64)


@program(two(lambda self, x: (x + x, x.sum(), x * 2, x.float() @ self.left.weight, torch.where(x > 0, x, 0), ~(x == 1))))
def all_dtypes(run: Run) -> Steps:
    for dtype in DTYPES:
        yield run(rand().to(dtype))


@program(
    two(lambda self, x: self.left(x.to(torch.float32)) + self.right(x.float())), lambda: torch.ones(3, 4, dtype=torch.uint16)
)
def rare_dtypes(run: Run) -> Steps:
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int8):
        yield run(torch.ones(3, 4, dtype=dtype))


@program(two(lambda self, x: (x.sum() + self.left.weight.sum(), torch.tensor(3), x[0, 0], torch.zeros(0), torch.zeros(2, 0))))
def no_dimensions_and_no_elements(run: Run) -> Steps:
    yield run.learn(rand())
    yield run(rand(1, 1))


@program(two(lambda self, x: torch.stack([self.left(x).nan_to_num(), self.right(x) / 0 * 0, x.log()])), lambda: rand())
def not_numbers_and_infinities(run: Run) -> Steps:
    yield run(rand())
    yield run(rand().fill_(float("nan")))
    yield run(rand().fill_(float("-inf")))


@program(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3)), refused=True)
def lazy_layers(run: Run) -> Steps:
    yield run.module(rand())
    yield run(rand(2, 4))


@program(lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), refused=True)
def scripted_model(run: Run) -> Steps:
    yield run(rand())


class ScriptedPart(Two):
    def __init__(self) -> None:
        super().__init__()
        self.left = torch.jit.script(self.left)


@program(ScriptedPart)
def scripted_part(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


@program(lambda: torch.ao.quantization.quantize_dynamic(Two(), {nn.Linear}, torch.qint8))
def quantized_layers(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))
