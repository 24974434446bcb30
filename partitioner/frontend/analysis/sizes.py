"""What the values of a graph take at sizes that were not seen while it was traced.

A dimension that the tracer left open is a symbol, and the size of everything that follows from it is an expression of symbols.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partitioner.ir.graph import Graph
from partitioner.model.fakes import number_of, tensors_in


@dataclass(frozen=True)
class Sizes:
    """The sizes of a graph's values as expressions of its open dimensions.

    Args:
        sources: where a call tells the number that each symbol stands for: position of an argument, and its dimension;
            ``None`` for an argument that is the number itself.
        shapes: for each op, element size and dimensions of the tensors in its result.
    """

    sources: dict[Any, tuple[int, int | None]]
    shapes: dict[str, tuple[tuple[int, tuple[Any, ...]], ...]]

    @staticmethod
    def of(graph: Graph) -> Sizes:
        """The sizes of a graph that still has its fakes."""
        placeholders = graph.fx.find_nodes(op="placeholder")
        sources: dict[Any, tuple[int, int | None]] = {}
        for position, value in enumerate(node.meta.get("example_value") for node in placeholders):
            dimensions = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
            for dimension, size in dimensions:
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    sources.setdefault(size.node.expr, (position, dimension))
        shapes = {
            node.name: tuple(
                (tensor.element_size(), tuple(map(_dimension, tensor.shape)))
                for tensor in tensors_in(node.meta.get("example_value"))
                if tensor.layout is torch.strided
            )
            for node in graph.fx.nodes
            if node.name in graph.by_name
        }
        return Sizes(sources, shapes)

    def numbers(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """What the symbols stand for in a call, in order."""
        return tuple(
            int(arguments[position] if dimension is None else arguments[position].shape[dimension])
            for position, dimension in self.sources.values()
        )

    def bytes_at(self, numbers: Sequence[int]) -> dict[str, int]:
        """Bytes of each op's result where the symbols stand for ``numbers``."""
        known = dict(zip(self.sources, numbers, strict=True))
        found: dict[Any, int] = {}

        def size(dimension: Any) -> int:
            if isinstance(dimension, int):
                return dimension
            if dimension not in found:
                value = dimension.subs(known)
                found[dimension] = int(value) if value.is_number else 1  # it depends on data
            return found[dimension]

        return {
            op: sum(element * math.prod(map(size, dimensions)) for element, dimensions in tensors)
            for op, tensors in self.shapes.items()
        }

    @property
    def only_grow(self) -> bool:
        """Whether everything is at least as large where the symbols are larger, as far as can be told."""
        dimensions = {size for tensors in self.shapes.values() for _, shape in tensors for size in shape}
        return all(isinstance(size, int) or _grows(size) for size in dimensions)


def _dimension(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) and not size.node.expr.is_number else int(number_of(size))


def _grows(expression: Any) -> bool:
    polynomial = expression.as_poly(*expression.free_symbols)
    return polynomial is not None and all(factor.is_nonnegative for factor in polynomial.coeffs())
