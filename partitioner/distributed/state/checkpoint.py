"""Checkpoints of a job: written by its ranks together, whole or not at all, and read by any other layout of ranks.

    where = latest("run")
    step, extra = load(where, model, optimizer) if where else (0, None)
    ...
    save("run", model, optimizer, step, extra)

The files are `torch.distributed.checkpoint`'s, whose index torch reads with pickle: load only what you trust.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from partitioner.distributed.ranks import agree, gathered, here, together, told
from partitioner.distributed.state.background import Saving, begun, own_group, wait
from partitioner.distributed.state.checkpointfiles import FILES, checksums, damage, finish, path_of, prepare, read, room
from partitioner.distributed.state.held import Ranked
from partitioner.distributed.state.kept import MODEL, RANDOM, Kept, go_on, merged, random_states
from partitioner.distributed.tensor.collectives import put
from partitioner.errors import CheckpointError
from partitioner.ir.words import first_lines


class Progress(NamedTuple):
    """How far the training was that a checkpoint was made of.

    Args:
        step: as `save` was told.
        extra: as `save` was told, of what JSON can say.
    """

    step: int
    extra: Any


@overload
def save(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    extra: Any = None,
    *,
    asynchronous: Literal[False] = False,
) -> Path: ...


@overload
def save(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    extra: Any = None,
    *,
    asynchronous: Literal[True],
) -> Saving: ...


def save(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    extra: Any = None,
    *,
    asynchronous: bool = False,
) -> Path | Saving:
    """Write a checkpoint, a new folder ``step-<n>``, which has its name only once all of it is on the disk.

    Every rank calls it, with the part of the model that `parallelize` gave; a plain model in one process is saved alike. Kept
    are parameters, persistent buffers, the optimizer's state and options, and the states of torch's random numbers on each
    rank. Python's and NumPy's random numbers are not, nor the place in the data: find that from the step.

    Args:
        folder: of the run; all ranks see it.
        model: what `parallelize` gave, or a plain model.
        optimizer: of its parameters.
        step: how many were made.
        extra: whatever else is wanted, of what JSON can say, such as a scheduler's ``state_dict()``. The first rank's is kept.
        asynchronous: whether to return once all is copied, and write while training goes on. Its ``result()`` waits.

    Returns:
        The checkpoint; or what is being written, with ``result()`` and ``done()``.

    Raises:
        CheckpointError: there is one of this step already, or it, or the one before that was written while training went on,
            cannot be written; on the first rank, the others end.
        RanksError: another rank is lost; names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     save(run, nn.Linear(2, 2), step=5).name
        'step-5'
    """
    wait()
    _refuse_others(model, optimizer)
    final = together(lambda: _final(folder, step))
    unfinished = final.with_name(f"{final.name}.unfinished")
    kept = together(lambda: Kept(model, optimizer, copied=asynchronous, saving=True))
    about = {"step": step, "extra": extra, "seed": torch.initial_seed(), **merged(gathered(kept.said()))}
    text = together(lambda: prepare(final, unfinished, about) if here() == 0 else "")
    together(lambda: _see(unfinished))
    _warn_of_differences(kept)
    content = {**_held_once(kept.tensors()), **kept.states(), **random_states(here())}
    if not asynchronous:
        _write(final, unfinished, text, content, None)
        return final
    return begun(final, partial(_write, final, unfinished, text, content, own_group()))


def _final(folder: object, step: object) -> Path:
    """Where a checkpoint will be; of another step than a number that `latest` reads, nobody would find it again."""
    if type(step) is not int or step < 0:
        raise CheckpointError(f"step is how many steps were made, an int that is not negative, and this one is {step!r}")
    return path_of(folder) / f"step-{step}"


def _held_once(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without those that are whole here and sharded on other ranks: a frozen tie, of whose stages one trains nothing."""
    sharded = {name for name, tensor in tensors.items() if hasattr(getattr(tensor, "part", tensor), "to_local")}
    anywhere = {name for names in gathered(sharded) for name in names}
    return {name: tensor for name, tensor in tensors.items() if name in sharded or name not in anywhere}


def _see(unfinished: Path) -> None:
    if not unfinished.is_dir():
        raise CheckpointError(f"rank {here()} does not see {unfinished}: checkpoints need a folder that all ranks share")


def _write(final: Path, unfinished: Path, text: str, content: dict[str, Any], group: dist.ProcessGroup | None) -> None:
    """Write the files of all ranks, and give the whole its name."""
    writer = FileSystemWriter(unfinished)
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    job = dist.is_initialized()
    with _explained(lambda: f"{final} could not be written, with {room(unfinished)}", "saving a checkpoint"):
        state_dict_saver.save(content, storage_writer=writer, planner=planner, process_group=group, no_dist=not job)
    own = together(lambda: checksums(unfinished, here()), group)
    files = {name: value for each in gathered(own, group) for name, value in each.items()}
    together(lambda: finish(final, unfinished, text, files) if here() == 0 else None, group)


def load(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Progress:
    """Read a checkpoint into a model and its optimizer, in place, whatever layout of ranks wrote it.

    Every rank calls it, with the same folder. With an optimizer, training goes on: in a job of as many ranks torch's random
    numbers go on too, and in another one they start anew from the seed, the step and the rank, the same each time.

    Args:
        folder: the checkpoint, such as `latest` gives.
        model: what `parallelize` gave, or a plain model.
        optimizer: of its parameters.

    Returns:
        The step, and ``extra``; of a checkpoint that torch wrote by itself, 0 and ``None``.

    Raises:
        CheckpointError: there is no whole checkpoint, or it does not fit: a key is missing, or there is one too many, or a
            shape is another; a file is not what was written; it was of another kind of optimizer, or a newer version. On the
            first rank, the others end. Then the model is as it was.
        RanksError: ranks were given different checkpoints; or one of them is lost.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     load(save(run, nn.Linear(2, 2), step=5, extra="good"), nn.Linear(2, 2))
        Progress(step=5, extra='good')
    """
    _refuse_others(model, optimizer)
    folder = together(lambda: path_of(folder))
    kept = together(lambda: Kept(model, optimizer))
    about, found = together(lambda: read(folder, RANDOM))
    agree({"the checkpoint": f"step {about.get('step', 0)}, in {folder}"})
    lines = gathered(kept.faults(found, about))
    needed = {name for names in gathered(list(kept.tensors())) for name in names}
    excess = [f"{name.removeprefix(MODEL)} is not in the model" for name in found.state_dict_metadata if _excess(name, needed)]
    together(lambda: _refuse(folder, list(dict.fromkeys([line for each in lines for line in each] + excess))))
    together(partial(_refuse_damage, gathered(damage(folder, about.get(FILES, {}), here(), len(lines)))))
    states = together(lambda: kept.empty_states(found))
    random = random_states(here()) if optimizer is not None and about.get("ranks") == len(lines) else {}
    random = {name: state for name, state in random.items() if name in found.state_dict_metadata}
    held = kept.tensors()
    spread = {name: each for name, each in held.items() if not each.is_contiguous() and 0 in each.stride()}
    content = {**held, **{name: each.contiguous() for name, each in spread.items()}, **states, **random}
    with _explained(lambda: f"{folder} could not be read", "loading a checkpoint"):
        state_dict_loader.load(content, storage_reader=FileSystemReader(folder), no_dist=not dist.is_initialized())
    for name, each in spread.items():
        put(each, content[name])
    together(lambda: kept.give({name: content[name] for name in states}, about))
    if optimizer is not None and about:
        go_on({name: content[name] for name in random}, about["seed"], about["step"], here())
    return Progress(about.get("step", 0), about.get("extra"))


def _excess(name: str, needed: set[str]) -> bool:
    return name.startswith(MODEL) and name not in needed


def _refuse(folder: Path, lines: list[str]) -> None:
    if lines:
        raise CheckpointError("\n  ".join([f"{folder} does not fit the model:", *first_lines(lines)]))


def _refuse_damage(said: list[str]) -> None:
    if any(said):
        raise CheckpointError(next(filter(None, said)))


def _refuse_others(model: object, optimizer: object) -> None:
    """Refuse what is no model and optimizer, such as a step in its place.

    And one rank's part of a model without the others: a checkpoint of it would have a part, and look like a whole one.
    """
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"a model is a torch.nn.Module, such as parallelize gives, and this is of type {type(model).__name__}"
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise CheckpointError(
            f"an optimizer has parameters, and this is of type {type(optimizer).__name__}: a step goes by step="
        )
    if not dist.is_initialized() and any(isinstance(each, Ranked) and each.in_job for each in model.modules()):
        raise CheckpointError(
            "this is one rank's part of a model, and the process group of its job was destroyed: save and load before that"
        )


def _warn_of_differences(kept: Kept) -> None:
    """Tell of parameters that several ranks hold with different values, of which the first rank's is kept."""
    said = gathered(
        {
            name: blake2b(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, digest_size=8).hexdigest()
            for name, tensor in kept.replicated().items()
        }
        if dist.is_initialized() and dist.get_world_size() > 1
        else {}
    )
    first: dict[str, tuple[int, str]] = {}
    for rank, each in enumerate(said):
        for name, digest in each.items():
            if first.setdefault(name, (rank, digest))[1] != digest and here() == 0:
                warnings.warn(
                    f"{name.removeprefix(MODEL)} differs between rank {first[name][0]} and rank {rank}; the first one's values "
                    "are kept, as of all that several ranks hold",
                    stacklevel=3,
                )
                return


@contextmanager
def _explained(failed: Callable[[], str], doing: str) -> Iterator[None]:
    """Raise what torch's checkpoints raise, which `except Exception` would not catch, as an error of ours.

    Raises:
        CheckpointError: on the first rank; the others end.
        RanksError: another rank is lost.
    """
    try:
        with ExitStack() as block:
            if dist.is_initialized():
                block.enter_context(told(None, doing))
            else:  # no thread of a job is to lose warnings, for this is for all of them
                block.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda each: each[0])
        if here():
            raise SystemExit(1) from None
        raise CheckpointError(f"{failed()}. Rank {rank}: {type(cause).__name__}: {cause}") from cause
