"""What a user may ask for of many ranks: the mesh, the schedule, what wraps each rank's part.

    distributed:
      mesh: {data: 2, pipeline: 2}
      schedule: 1f1b
      microbatches: 4
      wrap: ddp

Which combinations torch computes wrongly is known to `partitioner/distributed/schedules.py`, which refuses them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from partitioner.spec.quantities import Duration

ScheduleName = Literal["gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble"]


class MeshSpec(BaseModel, frozen=True, extra="forbid"):
    """The ranks, by axis: their product is the world size.

    >>> MeshSpec(pipeline=4).size
    4
    """

    data: int = Field(default=1, strict=True, ge=1, description="copies of the model, each with its part of the batch")
    pipeline: int = Field(default=1, strict=True, ge=1, description="ranks that hold one copy together, in stages")

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.data * self.pipeline


class DistributedSpec(BaseModel, frozen=True, extra="forbid"):
    """Ranks, and how they work together.

    >>> DistributedSpec(mesh={"pipeline": 2}, microbatches=4).schedule
    '1f1b'
    """

    mesh: MeshSpec = Field(default_factory=MeshSpec, description="how many ranks there are along each axis")
    schedule: ScheduleName = Field(
        default="1f1b", description="in which order stages work on microbatches; see torch.distributed.pipelining"
    )
    stages_per_rank: int = Field(
        default=1, strict=True, ge=1, description="stages that each rank holds, for schedules with several"
    )
    microbatches: int = Field(default=1, strict=True, ge=1, description="parts that a rank's batch is divided into")
    wrap: Literal["none", "ddp", "fsdp2"] = Field(
        default="ddp",
        description="how copies along the data axis agree: ddp averages gradients; fsdp2 shards parameters, too; none",
    )
    hook: Literal["none", "fp16", "bf16", "power_sgd"] = Field(
        default="none", description="how ddp compresses gradients on their way: to half precision, or to a low rank"
    )
    timeout: Duration = Field(
        default=300.0, le=86400, description="seconds after which a rank gives up on the others, such as 60s"
    )
