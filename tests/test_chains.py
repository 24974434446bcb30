"""Chains: what people call a branch, and no edge that decides nothing."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from partitioner.report.branches import branches, reduced
from partitioner.testing import GeneratedModule, modules
from programs import traced


def chains_of(module: nn.Module, *args: torch.Tensor) -> list[list[str]]:
    return branches(traced(module, *args))


def test_a_residual_block_is_one_chain() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(x)
            return x + self.two(self.one(x))

    assert chains_of(Block(), torch.zeros(2, 4)) == [["x_1", "one_linear", "two_linear", "add"]]


def test_sizes_belong_to_the_tensor_that_was_asked() -> None:
    class Views(nn.Module):
        """
        x_1 (and its size) -> left_linear, view
                           -> right_linear, view_1 -> matmul
        """

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(x)
            rows, columns = x.shape
            return self.left(x).view(rows, columns) @ self.right(x).view(columns, rows)

    found = chains_of(Views(), torch.zeros(4, 4))
    assert [[op for op in chain if not op.startswith(("get", "size"))] for chain in found] == [
        ["x_1"],
        ["left_linear", "view"],
        ["right_linear", "view_1"],
        ["matmul"],
    ]


@settings(max_examples=settings.default.max_examples // 2)
@given(modules())
def test_chains_of_any_model(model: GeneratedModule) -> None:
    graph = traced(model, *model.example_inputs(0))
    found = branches(graph)
    assert sorted(op for chain in found for op in chain) == sorted(graph.by_name)
    home = {op: number for number, chain in enumerate(found) for op in chain}
    assert all(home[source] <= home[target] for source, target in graph.edges), "chains are in an order that may run"
    tensors = [[op for op in chain if graph.by_name[op].tensor] for chain in found]
    for chain in tensors:
        for one, other in pairwise(chain):
            assert nx.has_path(graph.dag, one, other), "nothing in a chain may overlap"


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1])))
def test_reduction_is_that_of_networkx(edges: set[tuple[int, int]]) -> None:
    dag: nx.DiGraph[int] = nx.DiGraph(edges)
    assert set(reduced(dag).edges) == set(nx.transitive_reduction(dag).edges)
    assert set(reduced(dag)) == set(dag)
