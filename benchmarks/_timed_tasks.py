"""A profile that runs: a module whose layers sleep for as long as the profile says, partitioned over lanes and timed.

A sleeping thread needs no core, so four lanes can be tried on two cores: planning, threads and hand-offs decide what is left
of a speedup. The planner's roofline knows nothing of sleeping, so a policy of the user's gives it the profile's seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from _common import Ratio, Way, alternate
from _workloads import Profile
from torch import Tensor, nn

from partitioner import partition
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem

NO_GRAIN = 1e-9
"""Every chain of layers is a task, however short the roofline takes it to be."""


@torch.library.custom_op("partitioner_benchmarks::timed", mutates_args=())
def timed(read: list[Tensor], seconds: float) -> Tensor:
    """A layer that takes ``seconds``, without a core and without Python's lock."""
    time.sleep(seconds)
    return torch.zeros(1)


@timed.register_fake
def _(read: list[Tensor], seconds: float) -> Tensor:
    return read[0].new_empty(1)


class TimedLayers(nn.Module):
    """The layers of a profile, each of which reads what the ones before it made and sleeps.

    Args:
        profile: layers and edges.
        scale: by what their times are multiplied, so that what threads cost is small beside a layer.
    """

    def __init__(self, profile: Profile, scale: float) -> None:
        super().__init__()
        self.before = profile.before
        self.seconds = [1e-3 * scale * each for each in profile.milliseconds]
        read = {source for source, _ in profile.edges}
        self.last = [layer for layer in range(len(profile.layers)) if layer not in read]

    def forward(self, x: Tensor) -> list[Tensor]:
        made: list[Tensor] = []
        for before, seconds in zip(self.before, self.seconds, strict=True):
            made.append(timed([made[layer] for layer in before] or [x], seconds))
        return [made[layer] for layer in self.last]


@dataclass(frozen=True)
class Profiled:
    """A policy that reckons with measured seconds in the place of the roofline's, and leaves the choice to another one.

    A layer that sleeps holds nothing that lanes share, neither cores nor Python's lock.

    Args:
        policy: who decides.
        seconds: of each op, by name; any other takes what the roofline says.
    """

    policy: Callable[[Problem], Assignment]
    seconds: Mapping[str, float]

    def __call__(self, problem: Problem) -> Assignment:
        """What the policy answers to the same problem with these seconds."""
        known = [sum(self.seconds.get(op, 0.0) for op in label.split()) for label in problem.labels]
        kinds = []
        for kind in problem.kinds:
            seconds = {threads: list(map(max, known, row)) for threads, row in kind.seconds.items()}
            kinds.append(replace(kind, seconds=seconds, share=None))
        return self.policy(replace(problem, kinds=tuple(kinds)))


@dataclass(frozen=True)
class Executed:
    """How a profile ran.

    Args:
        tasks: in which its layers were gathered.
        work: seconds that all layers sleep.
        promised: the makespan that the policy promised, hand-offs included.
        serial: seconds of the module in eager mode on one thread, round by round.
        lanes: likewise of the partitioned module.
    """

    tasks: int
    work: float
    promised: float
    serial: Sequence[float]
    lanes: Sequence[float]

    @property
    def speedup(self) -> Ratio:
        """Serial over partitioned, round by round."""
        return Ratio.of(self.serial, self.lanes)

    @property
    def predicted(self) -> float:
        """The speedup that the policy promised."""
        return self.work / self.promised

    @property
    def late(self) -> tuple[float, float]:
        """By what part of what was planned each side took longer, serial and lanes: sleep that ends late, ops, hand-offs."""
        return median(self.serial) / self.work - 1, median(self.lanes) / self.promised - 1


def executed(profile: Profile, lanes: int, policy: Callable[[Problem], Assignment], scale: float, rounds: int) -> Executed:
    """Run a profile's layers one after the other and partitioned over CPU lanes, in turns.

    Args:
        profile: what to run.
        lanes: threads that run at once.
        policy: who places the layers, told their seconds.
        scale: by what the profile's times are multiplied.
        rounds: how often each is timed.
    """
    model, x, devices = TimedLayers(profile, scale).eval(), torch.zeros(1), [f"cpu:{lane}" for lane in range(lanes)]
    answers: list[Assignment] = []
    seconds: dict[str, float] = {}

    def told(problem: Problem) -> Assignment:
        answers.append(Profiled(policy, seconds)(problem))
        return answers[-1]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            seconds.update(op_seconds(partition(model, devices, example_inputs=x, policy="single", check=False).graph.fx))
            parallel = partition(model, devices, example_inputs=x, policy=told, grain=NO_GRAIN, check=False)
            ways = {"serial": Way(lambda: model(x), threads=1), "lanes": Way(lambda: parallel(x), threads=1)}
            found = alternate(ways, rounds, shortest=0.0)
    finally:
        torch.set_num_threads(before)
    return Executed(len(answers[0].tasks), sum(model.seconds), answers[0].cost, found["serial"], found["lanes"])


def op_seconds(graph: torch.fx.Graph) -> dict[str, float]:
    """How long each timed op of a traced graph sleeps, by its name: its second argument says it."""
    return {
        node.name: float(node.args[1])
        for node in graph.nodes
        if node.op == "call_function" and "timed" in str(node.target) and isinstance(node.args[1], float)
    }
