"""How ops are shared out over ranks: every rule beside the op itself, the planner beside all choices, parts beside the whole.

No rank is started: what each would compute is computed one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.distributed.tensor.collectives import cut, embedding_of_part
from partitioner.distributed.tensor.portion import Portion
from partitioner.distributed.tensor.shards import sharding_of
from partitioner.distributed.tensor.ways import Ways, blocks_in, call_on_parts, inputs_of, is_vocabulary
from partitioner.distributed.traced.example import example_in
from partitioner.ir.machine import Device
from partitioner.ir.sharding import F as FANNED
from partitioner.ir.sharding import P, Placement, R, reshaped, shard
from partitioner.ir.shared import Axis, Rule, ShardedOp, Whole
from partitioner.planner import sharding
from partitioner.planner.conversions import PRICE
from partitioner.planner.sharding import shared_out
from partitioner.spec.spec import Spec
from programs import Calls

B, S, H, D = 2, 4, 4, 8


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


OPS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "linear": (F.linear, (_x(B, S, D), _x(6, D), _x(6))),
    "linear without bias": (F.linear, (_x(B, S, D), _x(6, D))),
    "matmul": (torch.matmul, (_x(B, H, S, D), _x(B, H, D, S))),
    "bmm": (torch.bmm, (_x(B, S, D), _x(B, D, 6))),
    "einsum": (lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), (_x(B, S, H, D), _x(B, S, H, D))),
    "addmm": (torch.addmm, (_x(D), _x(S, D), _x(D, D))),
    "add": (torch.add, (_x(B, S, D), _x(B, S, D))),
    "add alpha": (lambda a, b: torch.add(a, b, alpha=2.0), (_x(B, S, D), _x(B, S, D))),
    "add row": (torch.add, (_x(B, S, D), _x(D))),
    "add scalar": (lambda x: x + 1.0, (_x(B, S, D),)),
    "mul": (torch.mul, (_x(B, S, D), _x(B, S, 1))),
    "div": (torch.div, (_x(B, S, D), _x(B, S, D).abs() + 1)),
    "scaled": (lambda x: x / 2.0, (_x(B, S, D),)),
    "gelu": (F.gelu, (_x(B, S, D),)),
    "relu_": (lambda x: F.relu_(x * 1.0), (_x(B, S, D),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (_x(B, S, D), _x(D))),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), (_x(B, S, D),)),
    "cast": (lambda x: x.double(), (_x(B, S, D),)),
    "softmax": (lambda x: F.softmax(x, -1), (_x(B, S, D),)),
    "log_softmax": (lambda x: F.log_softmax(x, 1), (_x(B, S, D),)),
    "cumsum": (lambda x: x.cumsum(1), (_x(B, S, D),)),
    "sum": (lambda x: x.sum(1), (_x(B, S, D),)),
    "sum of all": (lambda x: x.sum(), (_x(B, S, D),)),
    "mean": (lambda x: x.mean(-1, keepdim=True), (_x(B, S, D),)),
    "max": (lambda x: x.max(1, keepdim=True), (_x(B, S, D),)),
    "var": (lambda x: x.var(1, keepdim=True), (_x(B, S, D),)),
    "topk": (lambda x: x.topk(2, -1), (_x(B, S, D),)),
    "sort": (lambda x: x.sort(1), (_x(B, S, D),)),
    "argmax": (lambda x: x.argmax(-1), (_x(B, S, D),)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (_x(B, S, D),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (D,), w, b), (_x(B, S, D), _x(D), _x(D))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (D,), w), (_x(B, S, D), _x(D))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (_x(B, 4, 4, 4), _x(4), _x(4))),
    "batch_norm eval": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v.abs(), w, b),
        (_x(B, 4, 4, 4), _x(4), _x(4), _x(4), _x(4)),
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (_x(B, 4, 4, 4), _x(4), _x(4))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (_x(B, 4, 4, 4), _x(6, 4, 3, 3), _x(6))),
    "conv1d": (lambda x, w: F.conv1d(x, w), (_x(B, 4, 6), _x(6, 4, 3))),
    "grouped conv2d": (lambda x, w: F.conv2d(x, w, groups=2), (_x(B, 4, 4, 4), _x(6, 2, 3, 3))),
    "transposed conv2d": (F.conv_transpose2d, (_x(B, 4, 4, 4), _x(4, 6, 3, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (_x(B, 4, 4, 4),)),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 2), (_x(B, 4, 4, 4),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), (_x(B, 4, 4, 4),)),
    "pad": (lambda x: F.pad(x, (1, 1)), (_x(B, S, D),)),
    "embedding": (F.embedding, (torch.arange(8).view(B, S) % 6, _x(6, D))),
    "embedding with padding": (lambda i, w: F.embedding(i, w, 3), (torch.arange(8).view(B, S) % 6, _x(6, D))),
    "attention": (F.scaled_dot_product_attention, (_x(B, H, S, D), _x(B, H, S, D), _x(B, H, S, D))),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_x(B, H, S, D), _x(B, H, S, D), _x(B, H, S, D)),
    ),
    "masked attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        (_x(B, H, S, D), _x(B, H, S, D), _x(B, H, S, D), _x(B, 1, S, S)),
    ),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (_x(B, H, S, D), _x(B, 2, S, D), _x(B, 2, S, D)),
    ),
    "view heads": (lambda x: x.view(B, S, H, 2), (_x(B, S, D),)),
    "view flat": (lambda x: x.view(B * S, D), (_x(B, S, D),)),
    "view back": (lambda x: x.reshape(B, S, D), (_x(B, S, H, 2),)),
    "unflatten": (lambda x: x.unflatten(-1, (2, 4)), (_x(B, S, D),)),
    "flatten": (lambda x: x.flatten(1), (_x(B, S, D),)),
    "transpose": (lambda x: x.transpose(1, 2), (_x(B, S, D),)),
    "permute": (lambda x: x.permute(2, 0, 1), (_x(B, S, D),)),
    "expand": (lambda x: x.expand(B, 3, S, D), (_x(B, 1, S, D),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (_x(B, S, D),)),
    "unsqueeze": (lambda x: x[:, None], (_x(B, S, D),)),
    "squeeze": (lambda x: x.squeeze(1), (_x(B, 1, D),)),
    "slice": (lambda x: x[:, 1:, :4], (_x(B, S, D),)),
    "select": (lambda x: x[:, 0], (_x(B, S, D),)),
    "chunk": (lambda x: x.chunk(3, -1), (_x(B, S, 12),)),
    "split": (lambda x: x.split(4, -1), (_x(B, S, 12),)),
    "split by sizes": (lambda x: torch.split(x, [4, 4, 4], dim=2), (_x(B, S, 12),)),
    "uneven split": (lambda x: x.split([8, 4], -1), (_x(B, S, 12),)),
    "unbind": (lambda x: x.unbind(2), (_x(B, S, 3, 4),)),
    "cat": (lambda x, y: torch.cat([x, y], -1), (_x(B, S, D), _x(B, S, D))),
    "stack": (lambda x, y: torch.stack([x, y], 1), (_x(B, S, D), _x(B, S, D))),
    "gather": (lambda x: x.gather(1, torch.zeros(B, S, D, dtype=torch.int64)), (_x(B, S, D),)),
    "index": (lambda x: x[:, [0, 2]], (_x(B, S, D),)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([0, 2])), (_x(B, S, D),)),
    "roll": (lambda x: x.roll(1, 1), (_x(B, S, D),)),
    "flip": (lambda x: x.flip(1), (_x(B, S, D),)),
    "tril": (lambda x: x.tril(), (_x(B, S, S),)),
    "glu": (lambda x: F.glu(x, -1), (_x(B, S, D),)),
    "heads of torch": (
        lambda x, w, b, o: F.multi_head_attention_forward(x, x, x, D, 2, w, b, None, None, False, 0.0, o, None)[0],
        (_x(S, B, D), _x(3 * D, D), _x(3 * D), _x(D, D)),
    ),
}


def parts_of(tensor: Tensor, place: Placement, ranks: int) -> list[Tensor]:
    """What each rank has of a tensor: summands are drawn at random."""
    if place.kind == "S":
        return [cut(tensor, place.dim, place.blocks, ranks, rank).clone() for rank in range(ranks)]
    if place == P:
        summands = [torch.randn_like(tensor) for _ in range(ranks - 1)]
        return [*summands, tensor - sum(summands, torch.zeros_like(tensor))]
    return [tensor.clone() for _ in range(ranks)]


def whole_of(parts: list[Tensor], place: Placement) -> Tensor:
    """The tensor of which ranks have these."""
    if place == P:
        return sum(parts[1:], parts[0])
    dim, blocks = place.dim, place.blocks
    return torch.cat([part.chunk(blocks, dim)[block] for block in range(blocks) for part in parts], dim)


def calls(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Iterator[tuple[torch.fx.Node, dict[Any, Any]]]:
    """Each op of a traced function, with the values of its inputs and its own."""
    example = example_in(Calls(function), tensors, None, 1)
    values: dict[Any, Any] = {}
    known = example.arguments(tensors)
    for node in example.traced.graph.fx.nodes:
        if node.op == "placeholder":
            values[node] = known[node.name]
        elif node.op.startswith("call_"):
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
            values[node] = (
                getattr(own[0][0], node.target)(*own[0][1:], **own[1])
                if node.op == "call_method"
                else node.target(*own[0], **own[1])
            )
            yield node, values


def on_parts(
    node: torch.fx.Node, values: Mapping[Any, Any], places: tuple[Placement, ...], result: Placement, ranks: int
) -> Any:
    """What ranks come to, put together."""
    inputs = inputs_of(node)
    spread = {source: [[] for _ in range(ranks)] for source in inputs}
    for source, place in zip(inputs, places, strict=True):
        leaves = tree_leaves(values[source])
        each = [parts_of(leaf, place, ranks) for leaf in leaves]
        spread[source] = [[part[rank] for part in each] for rank in range(ranks)]
    found = []
    for rank in range(ranks):
        own = dict(values)
        for source in inputs:
            own[source] = spread[source][rank][0] if isinstance(values[source], Tensor) else tuple(spread[source][rank])
        if is_vocabulary(node, inputs) and (places, result) == ((R, shard(0)), P):
            padding = node.args[2] if len(node.args) > 2 else node.kwargs.get("padding_idx")
            found.append(embedding_of_part(own[inputs[0]], own[inputs[1]], padding, rank))
            continue
        value = values[node]
        shape = result.local(tuple(value.shape), ranks) if isinstance(value, Tensor) else None
        found.append(call_on_parts(node, dict(zip(inputs, places, strict=True)), ranks, shape).on(own))
    return [
        whole_of([each[number] for each in map(tree_leaves, found)], result) for number in range(len(tree_leaves(found[0])))
    ]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", OPS)
def test_what_ranks_compute_of_parts_is_the_op(name: str) -> None:
    function, tensors = OPS[name]
    for ranks in (2, 3):
        for node, values in calls(function, tensors):
            for places, result in Ways(ranks, (2, 3)).of(node):
                wanted, found = tree_leaves(values[node]), on_parts(node, values, places, result, ranks)
                for one, other in zip(wanted, found, strict=True):
                    assert one.shape == other.shape, (node, Rule(places, result))
                    assert torch.allclose(other, one, rtol=1e-4, atol=1e-4), (node, str(Rule(places, result)))


FOUND = {
    "linear": {"R, S(0), S(0) -> S(2)", "S(2), S(1), P -> P", "S(1), R, R -> S(1)", "S(0), R, R -> S(0)"},
    "attention": {"S(1), S(1), S(1) -> S(1)", "S(0), S(0), S(0) -> S(0)"},
    "embedding": {"R, S(0) -> P", "R, S(1) -> S(2)", "S(0), R -> S(0)"},
    "batch_norm": {"S(1), S(0), S(0) -> S(1)"},
    "conv2d": {"R, S(0), S(0) -> S(1)", "S(1), S(1), P -> P", "S(0), R, R -> S(0)"},
    "chunk": {"S(2, 3) -> S(2)", "S(0) -> S(0)", "P -> P"},
    "softmax": {"S(0) -> S(0)", "S(1) -> S(1)"},
    "layer_norm": {"S(1), R, R -> S(1)"},
    "add": {"P, P -> P", "S(2), S(2) -> S(2)"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FOUND)
def test_the_ways_that_matter_are_found(name: str) -> None:
    """Without this, a table of no rules would pass the test above."""
    function, tensors = OPS[name]
    node = next(node for node, _ in calls(function, tensors))
    assert {str(Rule(*way)) for way in Ways(2, (3,)).of(node)} >= FOUND[name]


@given(st.data())
def test_a_reshape_is_local_exactly_where_it_says(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 3))
    sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)
    shape = tuple(data.draw(sizes))
    whole = torch.arange(torch.Size(shape).numel())
    splits = [into for into in itertools.product([1, 2, 3, 4, 6, 8, 9, 12], repeat=2) if into[0] * into[1] == whole.numel()]
    into = data.draw(st.sampled_from([(whole.numel(),), *splits]))
    place = shard(data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 3)))
    if not place.fits(shape, ranks):
        return
    found = reshaped(place, shape, into, ranks)
    parts = parts_of(whole.view(shape), place, ranks)
    ways = (shard(dim, blocks) for dim in range(len(into)) for blocks in range(1, whole.numel() + 1))
    fitting = [each for each in ways if each.fits(into, ranks)]
    right = [
        each
        for each in fitting
        if all(
            torch.equal(part.reshape(each.local(into, ranks)), own)
            for part, own in zip(parts, parts_of(whole.view(into), each, ranks), strict=True)
        )
    ]
    assert (found in right) if found is not None else not right


@given(st.data())
def test_the_planner_finds_the_cheapest_of_all_choices(data: st.DataObject) -> None:
    """On graphs that are small enough to try all rules of all ops."""
    axis = Axis(data.draw(st.integers(2, 4)), bandwidth=1e9, latency=data.draw(st.sampled_from([0.0, 1e-6])))
    places = [R, P, shard(0), shard(1)]
    values = {"x": Whole(2**10, False), "w": Whole(2**12, True, state=True, held=2**12, matrix=True)}
    ops = []
    for number in range(data.draw(st.integers(1, 4))):
        known = [*(op.name for op in ops), "x", "w"]
        inputs = tuple(dict.fromkeys(data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))))
        rules = [Rule((R,) * len(inputs), R, data.draw(st.integers(1, 9)) * 1e-6)]
        for _ in range(data.draw(st.integers(0, 3))):
            given_places = tuple(data.draw(st.sampled_from(places)) for _ in inputs)
            if any(place != R for place in given_places):
                rules.append(Rule(given_places, data.draw(st.sampled_from(places[1:])), data.draw(st.integers(0, 9)) * 1e-6))
        ops.append(ShardedOp(f"op{number}", inputs, tuple(rules)))
        values[f"op{number}"] = Whole(data.draw(st.sampled_from([2**8, 2**12, 2**16])), data.draw(st.booleans()))
    results = [ops[-1].name]
    found = shared_out(ops, values, results, axis)
    alone = [
        shared_out([replace(op, rules=(rule,)) for op, rule in zip(ops, rules, strict=True)], values, results, axis)
        for rules in _choices(ops)
    ]
    assert found.proven
    assert found.cost == pytest.approx(min(_priced(ops, values, results, axis, _rules(one)) for one in alone))
    assert found.cost == pytest.approx(_priced(ops, values, results, axis, found.rules))


def _choices(ops: list[ShardedOp]) -> Iterator[tuple[Rule, ...]]:
    return itertools.product(*(op.rules for op in ops))


def _rules(sharding: Any) -> Mapping[str, Rule]:
    return sharding.rules


def _priced(
    ops: list[ShardedOp], values: Mapping[str, Whole], results: list[str], axis: Axis, rules: Mapping[str, Rule]
) -> float:
    """The price of a choice, reckoned plainly: the first reader of a parameter says how it begins."""
    forms: dict[str, list[Placement]] = {"x": [R]}
    total = 0.0

    def read(name: str, need: Placement) -> float:
        whole, price = values[name], 0.0
        if name not in forms:
            forms[name] = [need if need.kind == "S" else R]
            price += PRICE * (whole.held / axis.bandwidth + axis.latency) if forms[name] == [R] else 0.0
        way = axis.way(sorted(forms[name]), need, whole.bytes, whole.grad)
        if way is None:
            return float("inf")
        if whole.state and any(source.kind == "S" for source, _ in way[1]):
            price += PRICE * (whole.held / axis.bandwidth + axis.latency)
        if way[0] > 0:
            forms[name] += [target for _, target in way[1] if target not in forms[name]]
        return price + way[0]

    for op in ops:
        rule = rules[op.name]
        for name, place in zip(op.inputs, rule.inputs, strict=True):
            total += read(name, FANNED if place == R and rule.output != R and values[name].grad else place)
        forms[op.name] = [rule.output]
        total += rule.seconds
    return total + sum(read(name, R) for name in results)


class Block(nn.Module):
    """Attention and two layers, as everybody writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        heads = [each.unflatten(-1, (4, 16)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1)]
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def test_a_transformer_is_shared_out_by_heads_columns_and_rows() -> None:
    """What Megatron's authors found by hand: one sum behind attention, and one behind the two layers."""
    traced = example_in(Block(), torch.randn(4, 16, 64), None, 1).traced
    found = sharding_of(traced, Axis(2), Device("cpu", "cpu"), Spec())
    held = {traced.graph.states[name]: str(place) for name, place in found.state.items()}
    assert held | {"norm.weight": "R", "norm.bias": "R", "out.bias": "R", "down.bias": "R"} == {
        "norm.weight": "R",
        "norm.bias": "R",
        "qkv.weight": "S(0, 3)",
        "qkv.bias": "S(0, 3)",
        "out.weight": "S(1)",
        "out.bias": "R",
        "up.weight": "S(0)",
        "up.bias": "S(0)",
        "down.weight": "S(1)",
        "down.bias": "R",
    }
    assert "scaled_dot_product_attention: S(1), S(1), S(1) -> S(1)" in str(found)
    assert blocks_in(traced.graph.fx) == (3,)


def test_layers_that_are_alike_are_shared_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 126 layers took as long as the first one. Their costs lie on a grid: summed as floats, no two were alike."""
    steps: list[object] = []
    plain = sharding._step
    monkeypatch.setattr(sharding, "_step", lambda *asked: steps.append(asked) or plain(*asked))
    made, costs = [], []
    for depth in (3, 6, 12):
        steps.clear()
        traced = example_in(nn.Sequential(*(Block() for _ in range(depth))), torch.randn(4, 16, 64), None, 1).traced
        found = sharding_of(traced, Axis(2), Device("cpu", "cpu"), Spec())
        held = {name.partition(".")[2]: set[str]() for name in traced.graph.states.values()}
        for name, place in found.state.items():
            held[traced.graph.states[name].partition(".")[2]].add(str(place))
        assert held["qkv.weight"] == {"S(0, 3)"} and held["down.weight"] == {"S(1)"}
        made.append(len(steps))
        costs.append(found.cost)
    assert made[0] == made[1] == made[2], made
    assert costs[2] - costs[1] == pytest.approx(2 * (costs[1] - costs[0]))


@given(st.data())
def test_portions_of_all_ranks_are_the_whole(data: st.DataObject) -> None:
    ranks, dim, blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1)), data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))]
    shape[dim] *= ranks * blocks
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    put = torch.full_like(whole, -1)
    for rank in range(ranks):
        portion = Portion(cut(whole, dim, blocks, ranks, rank).clone(), shard(dim, blocks), ranks, rank)
        assert portion.shape == whole.shape
        for item in portion.__create_write_items__("w", portion):
            box = tuple(
                slice(start, start + size)
                for start, size in zip(item.tensor_data.chunk.offsets, item.tensor_data.chunk.sizes, strict=True)
            )
            assert (put[box] == -1).all()
            put[box] = portion.__get_tensor_shard__(item.index)
    assert torch.equal(put, whole)
