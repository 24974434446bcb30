"""From one process to many: the same model and the same spec, started with torchrun.

    model, step = partitioner.distributed.parallelize(model, example_inputs, spec="pipeline_x_data.yaml", loss_fn=loss)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = step(batch)
        optimizer.step()
        optimizer.zero_grad()

The engine is torch's: `torch.distributed.pipelining` runs stages, DDP or FSDP2 works along the data axis, functional
collectives pass what ranks share. What is done here is to trace the model, share it out, cut it, wire it, and refuse what would
go wrong without a word.
"""

from partitioner.distributed.jobplan import JobPlan, plan
from partitioner.distributed.pipeline.cut import Cut, cut_into
from partitioner.distributed.predicted.outlook import outlook
from partitioner.distributed.predicted.prediction import Outlook
from partitioner.distributed.run.forward import Forward
from partitioner.distributed.run.scaler import GradScaler
from partitioner.distributed.run.step import Step
from partitioner.distributed.state.background import Saving
from partitioner.distributed.state.checkpoint import Progress, load, save
from partitioner.distributed.state.checkpointfiles import latest
from partitioner.distributed.state.held import Ranked
from partitioner.distributed.wire import Wired, inference, parallelize, stages
from partitioner.errors import CheckpointError

__all__ = [
    "CheckpointError",
    "Cut",
    "Forward",
    "GradScaler",
    "JobPlan",
    "Outlook",
    "Progress",
    "Ranked",
    "Saving",
    "Step",
    "Wired",
    "cut_into",
    "inference",
    "latest",
    "load",
    "outlook",
    "parallelize",
    "plan",
    "save",
    "stages",
]
