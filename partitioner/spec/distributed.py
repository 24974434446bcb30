"""What a user may ask for of many ranks: the mesh, the schedule, what wraps each rank's part.

    distributed:
      mesh: {data: 2, pipeline: 2}
      schedule: 1f1b
      microbatches: 4
      wrap: ddp
      hosts: 2
      links: {between: {network: InfiniBand-NDR}}

With ``mesh: auto`` the planner chooses what the section does not say, for as many ``ranks`` as there are. Which combinations
torch computes wrongly is known to `partitioner/distributed/pipeline/schedules.py`, which refuses them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from partitioner.spec.hardware import NETWORKS, network_named
from partitioner.spec.quantities import Bandwidth, Count, Duration, Flag

ScheduleName = Literal["gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble"]


MOST = 2**17
Some = Annotated[Count, Field(le=2**14)]
"""Of what each is reckoned with: a number with noughts too many would take hours, or all memory, before it is refused."""


class MeshSpec(BaseModel, frozen=True, extra="forbid"):
    """The ranks, by axis: their product is the world size.

    >>> MeshSpec(pipeline=4).size
    4
    """

    data: Some = Field(default=1, description="copies of the model, each with its part of the batch")
    pipeline: Some = Field(default=1, description="ranks that hold one copy together, in stages")
    tensor: Some = Field(default=1, description="ranks that hold one stage together, each a part of its layers")

    branch: Some = Field(default=1, description="ranks that hold one stage together, each some of its branches")
    auto: Flag = Field(
        default=False,
        description="whether the planner chooses the axes that are not said; of all of them, mesh: auto",
    )

    @model_validator(mode="after")
    def _countable(self) -> MeshSpec:
        if self.size > MOST:
            raise ValueError(f"a mesh has at most {MOST} ranks, and {self} has {self.size}")
        return self

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.data * self.pipeline * self.branch * self.tensor

    @property
    def inner(self) -> int:
        """How many ranks hold one stage of one copy; they lie next to each other."""
        return self.branch * self.tensor

    def __str__(self) -> str:
        branch = f" x branch {self.branch}" if self.branch > 1 else ""
        return "auto" if self.auto else f"data {self.data} x pipeline {self.pipeline}{branch} x tensor {self.tensor}"


class _OrAuto:
    """A field that reads the word ``auto`` as ``{auto: true}``, in Python and in the JSON Schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"const": "auto", "type": "string"}, handler(schema)]}


Mesh = Annotated[MeshSpec, BeforeValidator(lambda value: {"auto": True} if value == "auto" else value), _OrAuto]

Network = Annotated[
    str, BeforeValidator(lambda text: network_named(text).name), Field(json_schema_extra={"examples": list(NETWORKS)})
]


class RankLinkSpec(BaseModel, frozen=True, extra="forbid"):
    """What one rank has to another one, one way. What is left out is that of a data sheet, or assumed.

    >>> RankLinkSpec(network="infiniband ndr").network
    'InfiniBand-NDR'
    """

    network: Network | None = Field(default=None, description="what it is, such as InfiniBand-NDR: its data sheet's bandwidth")
    bandwidth: Bandwidth | None = Field(default=None, description="bytes/s that one rank sends, such as 50GB/s")
    latency: Duration | None = Field(default=None, description="seconds that a message takes before its bytes, such as 10us")


class RankLinksSpec(BaseModel, frozen=True, extra="forbid"):
    """The links between ranks.

    >>> RankLinksSpec(within={"bandwidth": "450GB/s"}).within.bandwidth
    450000000000.0
    """

    within: RankLinkSpec = Field(default_factory=RankLinkSpec, description="between ranks of one host, such as NVLink")
    between: RankLinkSpec = Field(default_factory=RankLinkSpec, description="between ranks of two hosts; a rank's own share")


class DistributedSpec(BaseModel, frozen=True, extra="forbid"):
    """Ranks, and how they work together.

    >>> DistributedSpec(mesh={"pipeline": 2}, microbatches=4).schedule
    '1f1b'
    """

    mesh: Mesh = Field(
        default_factory=MeshSpec, description="how many ranks there are along each axis; auto for the planner to choose"
    )
    ranks: Some | None = Field(
        default=None, description="how many ranks there are, for mesh: auto; null for as many as torchrun started"
    )
    hosts: Some | None = Field(
        default=None, description="on how many equal hosts the ranks are; null for what torchrun says, or one"
    )
    links: RankLinksSpec = Field(
        default_factory=RankLinksSpec, description="what ranks have to each other, within a host and between hosts"
    )
    schedule: ScheduleName = Field(
        default="1f1b", description="in which order stages work on microbatches; see torch.distributed.pipelining"
    )
    stages_per_rank: Some = Field(default=1, description="stages that each rank holds, for schedules with several")
    microbatches: Count = Field(default=1, description="parts that a rank's batch is divided into")
    wrap: Literal["none", "ddp", "fsdp2"] = Field(
        default="ddp",
        description="how copies along the data axis agree: ddp averages gradients; fsdp2 shards parameters, too; none",
    )
    hook: Literal["none", "fp16", "bf16", "power_sgd"] = Field(
        default="none", description="how ddp compresses gradients on their way: to half precision, or to a low rank"
    )
    recompute: Literal["none", "stage", "segments"] = Field(
        default="none",
        description="what is run again in a backward instead of being kept for it (activation checkpointing): nothing; each "
        "stage; or each stage segment by segment, as many as take the least memory",
    )
    timeout: Duration = Field(
        default=300.0, le=86400, description="seconds after which a rank gives up on the others, such as 60s"
    )
