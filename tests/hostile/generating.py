"""Methods that call the model in loops with caches of every kind, as text is generated, and objects that are its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .program import Run, Steps, Two, program, rand


def tokens(*shape: int) -> Tensor:
    size = shape or (2, 3)
    return torch.arange(torch.Size(size).numel()).remainder(11).view(size)


class Attends(nn.Module):
    """One layer of attention over 11 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)


class WithPairs(Attends):
    """The cache is a list of tuples, which grows."""

    def forward(self, ids: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> tuple[Tensor, Any]:
        h = self.embed(ids)
        key, value = self.key(h), self.value(h)
        if past is not None:
            key, value = torch.cat([past[0][0], key], 1), torch.cat([past[0][1], value], 1)
        seen = torch.ones(ids.shape[1], key.shape[1], dtype=torch.bool).tril(key.shape[1] - ids.shape[1])
        return self.head(F.scaled_dot_product_attention(self.query(h), key, value, attn_mask=seen)), [(key, value)]

    @torch.no_grad()
    def generate(self, ids: Tensor, steps: int = 4, sample: bool = False) -> Tensor:
        result, past, last = ids, None, ids
        for _ in range(steps):
            logits, past = self(last, past)
            chances = logits[:, -1].softmax(-1)
            last = torch.multinomial(chances, 1) if sample else chances.argmax(-1, keepdim=True)
            result = torch.cat([result, last], 1)
            if (last == 0).all():
                break
        return result

    def stream(self, ids: Tensor) -> Iterator[Tensor]:
        past = None
        for _ in range(3):
            logits, past = self(ids, past)
            ids = logits[:, -1:].argmax(-1)
            yield ids

    async def later(self, ids: Tensor) -> Tensor:
        logits: Tensor = self(ids)[0]
        return logits


@program(WithPairs, tokens)
def tuples_that_grow(run: Run) -> Steps:
    yield run.module.generate(tokens()), run.module.generate(tokens(1, 5), 6, sample=True)
    yield run.learn(tokens())[0][0], list(run.module.stream(tokens(1, 2)))
    coroutine = run.module.later(tokens())
    try:
        coroutine.send(None)
    except StopIteration as end:
        yield end.value


class WithRoom(Attends):
    """The cache has room for all, and is written in place."""

    def forward(self, ids: Tensor, at: Tensor, room: list[Tensor]) -> Tensor:
        h = self.embed(ids)
        room[0].index_copy_(1, at, self.key(h))
        room[1].index_copy_(1, at, self.value(h))
        seen = torch.arange(room[0].shape[1])[None] <= at[:, None]
        return self.head(F.scaled_dot_product_attention(self.query(h), *room, attn_mask=seen))

    @torch.no_grad()
    def generate(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        room = [torch.zeros(len(ids), 12, 8) for _ in range(2)]
        at, last, result = torch.arange(ids.shape[1]), ids, ids
        for _ in range(4):
            last = self(last, at, room)[:, -1].argmax(-1, keepdim=True)
            result, at = torch.cat([result, last], 1), at[-1:] + 1
        return result, room


@program(WithRoom, tokens, lambda: torch.arange(3), lambda: [torch.zeros(2, 12, 8) for _ in range(2)], slow=True)
def room_that_is_written(run: Run) -> Steps:
    yield run.module.generate(tokens()), run.module.generate(tokens(1, 2))


class Cache:
    """One of the user's."""

    key: Any = None
    value: Any = None
    seen = 0

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.key = key if self.key is None else torch.cat([self.key, key], 1)
        self.value = value if self.value is None else torch.cat([self.value, value], 1)
        self.seen += key.shape[1]
        return self.key, self.value

    def __len__(self) -> int:
        return self.seen


class WithObject(Attends):
    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        h = self.embed(ids)
        key, value = self.key(h), self.value(h)
        if cache is not None:
            key, value = cache.update(key, value)
        return self.head(F.scaled_dot_product_attention(self.query(h), key, value))

    def generate(self, ids: Tensor) -> tuple[Tensor, Tensor, int]:
        cache, last, result = Cache(), ids, ids
        while len(cache) < ids.shape[1] + 3:
            last = self(last, cache=cache)[:, -1:].argmax(-1)
            result = torch.cat([result, last], 1)
        return result, cache.key, len(cache)


@program(WithObject, tokens, slow=True)
def object_that_grows(run: Run) -> Steps:
    yield run.module.generate(tokens()), run.module.generate(tokens(1, 2))
    cache = Cache()
    for rows in (3, 1):
        yield run(tokens(2, rows), cache), vars(cache)


GIVEN = Cache()


def with_object() -> nn.Module:
    vars(GIVEN).clear()
    return WithObject()


@program(with_object, tokens, lambda: GIVEN)
def object_that_is_an_example(run: Run) -> Steps:
    """To compare, `partition` calls the model. What each call put into the object stayed there for the next, and for good."""
    yield vars(GIVEN), run(tokens(), GIVEN), vars(GIVEN)
    yield run(tokens(2, 1), GIVEN), vars(GIVEN)


class Box:
    def __init__(self) -> None:
        self.number, self.numbers, self.last = 0, torch.ones(4), None


class WritesAll(Two):
    def forward(self, x: Tensor, log: list[int], box: Any) -> Tensor:
        x.add_(1)
        log.append(len(log))
        box.number += 1
        box.numbers.mul_(2)
        y = self.left(x.clone())
        box.last = y.detach()
        return self.right(y) * box.number + box.numbers


@program(WritesAll, rand, list, Box)
def arguments_of_all_kinds_written(run: Run) -> Steps:
    box, log = Box(), [7]
    for seed in range(3):
        x = rand(seed=seed)
        yield run.learn(x, log, box), x, log, vars(box)
