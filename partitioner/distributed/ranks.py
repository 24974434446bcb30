"""The ranks of a job: where each one is in the mesh, whether all were asked the same, and who failed.

    mesh  data x pipeline x branch x tensor    rank 0  data 0, pipeline 0, tensor 0    rank 1  data 0, pipeline 0, tensor 1
                                               rank 2  data 0, pipeline 1, tensor 0    rank 3  data 0, pipeline 1, tensor 1

What is wrong on every rank is said once, by the first. A rank that loses another one says which, and what that one said before
it went.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from partitioner.distributed.board import beside, board, fault_of
from partitioner.distributed.groups import Groups, give_back
from partitioner.errors import InputError, PartitionerError, RanksError, SpecError
from partitioner.spec.cluster import from_torchrun
from partitioner.spec.distributed import DistributedSpec

T = TypeVar("T")

AXES = ("data", "pipeline", "branch", "tensor")

LEAD = 10.0
"""Seconds by which the first rank's words go ahead of another rank's end: with the first end, torchrun ends all of them. Ranks
may start seconds apart, and a busy host takes seconds to print an error."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """This rank, among the others.

    Args:
        mesh: of torch, with the axes of `AXES`.
        device: where this rank computes.
        groups: the mesh's, which go once nobody needs them.
    """

    mesh: DeviceMesh
    device: torch.device
    groups: Groups

    @cached_property
    def data(self) -> int:
        """Its place along the data axis."""
        return int(self.mesh.get_local_rank("data"))

    @cached_property
    def pipeline(self) -> int:
        """Its place along the pipeline axis."""
        return int(self.mesh.get_local_rank("pipeline"))

    @cached_property
    def branch(self) -> int:
        """Its place along the branch axis."""
        return int(self.mesh.get_local_rank("branch"))

    @cached_property
    def tensor(self) -> int:
        """Its place along the tensor axis."""
        return int(self.mesh.get_local_rank("tensor"))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """How many ranks each axis has: to cut an axis out of torch's mesh takes longer than an op."""
        return {axis: self.mesh.size(place) for place, axis in enumerate(AXES)}

    def wide(self, *axes: str) -> list[str]:
        """Those of some axes that have several ranks: along the others there is nobody to ask."""
        return [axis for axis in axes if self.sizes[axis] > 1]

    @property
    def name(self) -> str:
        """What errors call it."""
        rest = "".join(f", {axis} {getattr(self, axis)}" for axis in self.wide(*AXES[2:]))
        return f"rank {dist.get_rank()} (data {self.data}, pipeline {self.pipeline}{rest})"


def join(spec: DistributedSpec) -> torch.device:
    """Join the job that this process was started for; says where this rank computes.

    A process group that there is already is used as it is.

    Raises:
        SpecError: this process is not part of a job, or its environment is not as torchrun makes it.
        RanksError: another rank did not come.
    """
    device = _device()
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            size = (spec.ranks or 2) if spec.mesh.auto else spec.mesh.size
            raise SpecError(
                f"this process is not one of several; start the program with torchrun --nproc-per-node {size} program.py"
            )
        if from_torchrun("RANK") >= (size := from_torchrun("WORLD_SIZE")):
            raise SpecError(f"RANK is {os.environ['RANK']} in the environment, and WORLD_SIZE {size}: the first rank is 0")
        backend = "gloo" if device.type == "cpu" else None
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=spec.timeout))
        except dist.DistError as error:
            raise RanksError(f"not all ranks have come within {spec.timeout:g} s: {error}") from error
        except ValueError as error:
            raise SpecError(f"the environment is not as torchrun makes it: {error}") from error
    elif dist.get_backend() == "fake":
        raise SpecError("the process group has the backend fake, which passes nothing: plan(model, x, spec) needs no ranks")
    return device


def connect(spec: DistributedSpec) -> Ranks:
    """The mesh of the job.

    Raises:
        SpecError: as from `join`, or the job has another number of ranks than the mesh.
        RanksError: as from `join`.
    """
    device = join(spec)
    size = dist.get_world_size()
    if size != spec.mesh.size:
        axes = " x ".join(
            f"{axis} {getattr(spec.mesh, axis)}" for axis in AXES if axis in AXES[:2] or getattr(spec.mesh, axis) > 1
        )
        _refuse(SpecError(f"the mesh ({axes}) has {spec.mesh.size} ranks, and the job has {size}; change one of them"))
    with told(None, "joining the others"):
        board()
        give_back(gathered)
        mesh = init_device_mesh(device.type, tuple(getattr(spec.mesh, axis) for axis in AXES), mesh_dim_names=AXES)
    return Ranks(mesh, device, Groups(mesh))


def _device() -> torch.device:
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    device = torch.device(kind.type, from_torchrun("LOCAL_RANK", "0"))
    torch.accelerator.set_device_index(device.index)
    return device


def _refuse(error: PartitionerError) -> None:
    """Raise on the first rank; the others end without a word."""
    if dist.get_rank() == 0:
        raise error
    time.sleep(LEAD)
    raise SystemExit(1)


@contextmanager
def first_speaks() -> Iterator[None]:
    """Before ranks can ask each other: what is wrong on all of them is said by the first, for torchrun ends those that wait."""
    try:
        yield
    except PartitionerError:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(LEAD)
        raise


def together(build: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What ``build`` gives, if it succeeds on every rank.

    Args:
        build: asks no other rank for anything. In a program that is no job it is called, and that is all.
        group: of all ranks, for a thread beside the one that trains.

    Raises:
        PartitionerError: on the first rank, what the first rank that failed says; the others end.
    """
    if not dist.is_initialized():
        return build()
    made: list[T] = []
    fault: Exception | None = None
    try:
        made.append(build())
    except Exception as error:  # the others wait for what this rank says, whatever it is
        fault = error
    said = gathered(None if fault is None else f"{type(fault).__name__}: {fault}", group)
    if fault is not None and (dist.get_rank() == 0 or not isinstance(fault, PartitionerError)):
        raise fault
    failed = [(rank, each) for rank, each in enumerate(said) if each is not None]
    if failed:
        _refuse(RanksError(f"rank {failed[0][0]} failed. {failed[0][1]}"))
    return made[0]


def agree(facts: Mapping[str, str]) -> None:
    """Refuse ranks that were not asked the same.

    Raises:
        RanksError: on the first rank, with every fact that differs and the ranks that say something else; the others end.
    """
    said = gathered(dict(facts))
    lines = []
    for name in facts:
        first = said[0].get(name)
        others = [rank for rank, each in enumerate(said) if each.get(name) != first]
        if others:
            lines.append(f"  {name}: {first} on rank 0, and {said[others[0]].get(name)} on rank {', '.join(map(str, others))}")
    if lines:
        _refuse(RanksError("\n".join(["the ranks were not asked the same:", *lines])))


def told_by_first(value: T | None) -> T:
    """What the first rank decided, on every rank: measured seconds would differ from rank to rank."""
    said: list[T | None] = [value]
    with told(None, "waiting for what the first rank decides"):
        dist.broadcast_object_list(said, src=0)
    assert said[0] is not None
    return said[0]


def here() -> int:
    """This rank's number; 0 in a program that is no job."""
    return dist.get_rank() if dist.is_initialized() else 0


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """What each rank gives, by rank; in a program that is no job, what this one gives. As for `together`."""
    if not dist.is_initialized():
        return [value]
    said: list[T] = [value] * dist.get_world_size()
    with told(None, "agreeing with the others (in parallelize, save or load)"):
        # where one rank saves and others step, neither takes for its own what comes instead
        dist.all_gather_object(said, value, group=group or beside("agreeing"))
    all_go_on()
    return said


def all_go_on() -> None:
    """Whatever this rank said of a failure does not hold any more: all ranks have come to the same point since."""
    with suppress(RuntimeError):
        board().take_back()


@contextmanager
def told(ranks: Ranks | None, doing: str) -> Iterator[None]:
    """Tell the other ranks what went wrong here, and this one's user what went wrong elsewhere.

    Raises:
        RanksError: another rank failed, or is lost; names it. What fails here is raised as it is, unless it is the user's
            error and a rank before this one has the same: then this one ends without a word.
    """
    if not dist.is_initialized():
        raise RanksError(f"the process group of this job was destroyed, and {doing} needs it: destroy it last")
    try:
        yield
    except RanksError:
        raise  # said by what is done inside of this
    except Exception as error:
        where = f"{ranks.name if ranks else f'rank {dist.get_rank()}'}, {doing}"
        causes = _causes(error)
        if any(map(_is_lost_connection, causes)):
            raise RanksError(f"{where}: another rank is lost, end the job. {_why_lost(where)}") from error
        fault = fault_of(causes[-1])
        if _said_before(where, fault, wait=isinstance(error, PartitionerError)):
            time.sleep(LEAD)
            raise SystemExit(1) from None
        error.add_note(f"on {where}")
        raise


def refuse(text: str, doing: str) -> NoReturn:
    """The user's error, said once where all ranks make it; also in a program that is no job."""
    with told(None, doing) if dist.is_initialized() else nullcontext():
        raise InputError(text)


def _why_lost(where: str) -> str:
    try:
        return board().why_lost(where)
    except RuntimeError:
        return "The store is gone as well: the rank or the agent that holds it has died."


def _said_before(where: str, fault: str, wait: bool) -> bool:
    """Say what fails here; whether a rank before this one says the same."""
    try:
        board().say(f"{where}: {fault}")
        return wait and board().said_before(fault)
    except RuntimeError:
        return False


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what it was raised from: torch's stages wrap what they catch."""
    found = [error]
    while found[-1].__cause__ is not None:
        found.append(found[-1].__cause__)
    return found


def _is_lost_connection(error: BaseException) -> bool:
    """Whether an error tells of another rank: what torch's process groups raise has no class of its own."""
    words = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Timed out waiting",
        "timed out",
        "Broken pipe",
        "pair closure",
    )
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))
