"""The plan of a job of ranks as a document: what its first rank decides, in a form that is written, read and applied again.

    schema_version: 1
    model: GPT
    fingerprint: 6f1c...                                    of the graph of one microbatch
    inputs: {ids: 'int64[4, 128]'}
    training: true
    spec: {optimizer: adamw}
    distributed:
      mesh: {data: 1, pipeline: 2, tensor: 2}
      schedule: 1f1b
      ...
    bound: 0.0031
    stages:
    - seconds: 0.0032
      ops: [wte_embedding, h_0_ln, ...]
      state: [wte.weight, h.0.ln.weight, ...]               what a rank of the stage holds, or a part of it
      branches: [[h_0_tower_b, ...]]                        what the second rank of a branch axis runs of the ops
    sharding:
      ops: {'R, S(0), S(0) -> S(2)': [h_0_q, h_0_k, ...]}   each op that is shared out, by the rule for it
      state: {S(0): [h.0.q.weight, ...]}                    each tensor of which a rank holds a part
      ...
    ranks:
    - {host: 0, device: 'cuda:0', place: {data: 0, pipeline: 0, tensor: 0}, stages: [0]}

Rules and forms are text, as `ir/sharding.py` prints them: they are looked up among those that an op has, and never parsed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field, model_validator

from partitioner.ir.saved import Name, Rate, Row, Seconds, distinct


class SavedStage(Row):
    """A stage of the pipeline.

    Args:
        seconds: what it is expected to take for one microbatch, forwards.
        ops: in program order; of a tensor axis, those of one of its ranks.
        state: keys of the parameters and buffers that it holds.
        branches: of a branch axis, the ops of its second rank, of its third, and so on; all others are the first one's.
    """

    seconds: Seconds
    ops: tuple[Name, ...] = Field(min_length=1)
    state: tuple[Name, ...] = ()
    branches: tuple[tuple[Name, ...], ...] = ()

    @property
    def owners(self) -> dict[str, int]:
        """The rank of the branch axis of each op.

        >>> SavedStage(seconds=0.0, ops=("a", "b", "c"), branches=(("b",),)).owners
        {'a': 0, 'b': 1, 'c': 0}
        """
        return dict.fromkeys(self.ops, 0) | {name: rank for rank, names in enumerate(self.branches, 1) for name in names}


class SavedSharding(Row):
    """How the ranks of a tensor axis share the ops of a copy, as in `Sharding`.

    Args:
        bandwidth, latency, halves: of the links that were reckoned with; they say which of several conversions is cheapest.
        ops: by the rule, the ops that are shared out by it. All others work on whole values.
        state: by the form, the keys of tensors of which each rank holds a part. All others are whole on each.
    """

    bandwidth: Rate
    latency: Seconds
    halves: bool = True
    ops: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    state: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> SavedSharding:
        distinct("op", (name for names in self.ops.values() for name in names))
        distinct("key", (key for keys in self.state.values() for key in keys))
        return self

    @property
    def rules(self) -> dict[str, str]:
        """The rule of each op that is shared out.

        >>> SavedSharding(bandwidth=1e9, latency=0.0, ops={"R -> S(0)": ("a", "b")}).rules
        {'a': 'R -> S(0)', 'b': 'R -> S(0)'}
        """
        return {name: rule for rule, names in self.ops.items() for name in names}

    @property
    def forms(self) -> dict[str, str]:
        """The form of each tensor of which ranks hold parts, by its key."""
        return {key: form for form, keys in self.state.items() for key in keys}


class SavedRank(Row):
    """One rank: its host, its device there, its place along each axis of the mesh, and the numbers of its stages."""

    host: int = Field(ge=0)
    device: Name
    place: dict[str, int]
    stages: tuple[int, ...]


class SavedJob(Row):
    """A whole document. `distributed/planfile.py` writes and reads it, and `distributed/applied.py` holds jobs against it.

    Args:
        schema_version: the version of this format.
        model: the name of the model's class.
        fingerprint: the digest of the graph of one microbatch, before ranks share it.
        inputs: dtype and shape of the graph's inputs, by name.
        training: whether a backward follows.
        spec: what the spec says beside its section ``distributed``.
        distributed: that section, with everything that it left open.
        bound: what the longest stage takes at least, wherever the cuts are.
        stages: of the pipeline, in order.
        sharding: over the tensor axis, if there is one.
        ranks: by number.
    """

    schema_version: int = Field(ge=1, le=1)
    model: str
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    inputs: dict[str, str]
    training: bool
    spec: dict[str, Any] = Field(default_factory=dict)
    distributed: dict[str, Any]
    bound: Seconds
    stages: tuple[SavedStage, ...] = Field(min_length=1)
    sharding: SavedSharding | None = None
    ranks: tuple[SavedRank, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _agrees(self) -> SavedJob:
        distinct("op", (name for stage in self.stages for name in stage.ops))
        for stage in self.stages:
            distinct("key", stage.state)
            distinct("op", (name for names in stage.branches for name in names))
        return self

    @property
    def stage(self) -> dict[str, int]:
        """The stage of each op."""
        return {name: number for number, stage in enumerate(self.stages) for name in stage.ops}

    def data(self) -> dict[str, Any]:
        """The same as dictionaries, lists, texts and numbers, without what has its default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def digest(self) -> str:
        """SHA-256 over all of it: ranks whose documents have one digest do the same."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
