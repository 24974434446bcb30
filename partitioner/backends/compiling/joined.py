"""All lanes of a program as one TorchScript function: between two hand-offs stands no Python, and in a hand-off neither.

    def on_lane_1(x: Tensor, w: Tensor) -> Tuple[Tensor]:     what a lane that is not the caller's runs between two hand-offs
        right = t1(x, w)
        return (right,)

    def program(x: Tensor, v: Tensor, w: Tensor) -> List[Tensor]:
        ends_1 = torch.jit.fork(on_lane_1, x, w)              begun as soon as what it reads is there
        left = t0(x, v)                                       the caller's lane
        (right,) = torch.jit.wait(ends_1)
        return [t2(left, right)]

Forks run on PyTorch's own pool of threads, ``torch.get_num_interop_threads()``, under the modes of the caller. One that waits
for another gives its thread back meanwhile, so any number of lanes ends on any number of threads.

Only programs are joined whose tasks are all functions and write nothing: what fails halfway is called again, on lanes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import profiler

from partitioner.backends.bodies import Body
from partitioner.backends.compiling.frozen import Frozen, Laid
from partitioner.backends.compiling.scripted import Scripted
from partitioner.backends.nodes import results
from partitioner.backends.openmp import rest
from partitioner.ir.plan import Plan
from partitioner.ir.program import Free, Program, Record, Run, Wait
from partitioner.ir.segment import Segment, segments
from partitioner.model.modes import flushes, threads

_HOME = os.getpid()
"""The process of torch's own threads: in the child of a fork they do not exist, and torch would wait for them for good."""


@dataclass(frozen=True, eq=False)
class _Job:
    """What a lane runs between two hand-offs: tasks, and the jobs whose end the program lets it wait for.

    Args:
        lane: its own; the caller's where nothing is read, for such tasks are short.
        reads: values of others, or arguments.
        makes: values.
    """

    number: int
    lane: int
    bodies: Mapping[str, Body]
    after: tuple[int, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Joined:
    """A program as one function.

    Args:
        function: takes the values of some arguments, and gives the graph's results.
        positions: of these arguments among the graph's.
        laid: the weights that it holds, among the graph's arguments.
        lanes: how many share the CPU.
        source: what was compiled, for people.
    """

    function: Callable[..., list[Any]]
    positions: tuple[int, ...]
    laid: Sequence[Laid]
    lanes: int
    source: str

    def is_allowed(self, arguments: Sequence[Any]) -> bool:
        """Whether a call may use torch's own threads: none is left after a fork, none flushes numbers, none names ranges.

        And whether the weights that it holds are those among the arguments.
        """
        alone = os.getpid() == _HOME and not flushes() and not profiler._is_profiler_enabled
        return alone and all(laid.holds(arguments) for laid in self.laid)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run on the values of the graph's placeholders."""
        share = max(1, torch.get_num_threads() // self.lanes)
        with threads(share):
            if share == 1:
                rest()
            return self.function(*[arguments[position] for position in self.positions])


def joined(plan: Plan, bodies: Mapping[str, Body]) -> Joined | None:
    """One function of a whole program, or ``None`` where something has to stand between its tasks.

    Args:
        plan: on several CPU lanes.
        bodies: the function of each task of which there is one, compiled.

    Source: TorchScript's fork and wait, https://docs.pytorch.org/docs/stable/generated/torch.jit.fork.html
    """
    if not _can_join(plan, bodies):
        return None
    jobs = _jobs(plan.program, bodies)
    arguments = [name for name in plan.graph.arguments if any(name in job.reads for job in jobs)]
    source = _Text(jobs).program(arguments, [result.name for result in results(plan.graph)])
    function = _compiled(source, {task: _scripted(body).function for task, body in bodies.items()})
    number = {name: position for position, name in enumerate(plan.graph.arguments)}
    laid = [
        replace(body.run.laid, positions=[number[body.inputs[position]] for position in body.run.laid.positions])
        for body in bodies.values()
        if isinstance(body.run, Frozen)
    ]
    return Joined(function, tuple(map(number.__getitem__, arguments)), laid, len({job.lane for job in jobs}), source)


def _scripted(body: Body) -> Scripted:
    """The function that a task is called as now."""
    return body.run.laid.function if isinstance(body.run, Frozen) else body.run  # type: ignore[return-value]


def _can_join(plan: Plan, bodies: Mapping[str, Body]) -> bool:
    """Whether a program is calls of functions of TorchScript that write nothing, on several lanes of the CPU."""
    runs = [item for item in plan.program.instructions if isinstance(item, Run)]
    calm = all(isinstance(item, Run | Record | Wait | Free) for item in plan.program.instructions)
    scripted = all(isinstance(getattr(bodies.get(run.task), "run", None), Scripted | Frozen) for run in runs)
    pure = not any(body.written or body.draws for body in bodies.values())
    made = {name for body in bodies.values() for name in body.outputs}
    returned = all(isinstance(result, torch.fx.Node) and result.name in made for result in results(plan.graph))
    on_cpu = all(lane.kind == "cpu" for lane in plan.program.lanes)
    return calm and scripted and pure and returned and on_cpu and len({run.lane for run in runs}) > 1


def _jobs(program: Program, bodies: Mapping[str, Body]) -> list[_Job]:
    """The jobs of a program, in an order in which they can run: its segments."""
    found = segments(program)
    caller = min(segment.lane for segment in found)
    return [
        _job(number, segment, caller, {task: bodies[task] for task in segment.tasks}) for number, segment in enumerate(found)
    ]


def _job(number: int, segment: Segment, caller: int, bodies: Mapping[str, Body]) -> _Job:
    makes = [name for body in bodies.values() for name in body.outputs]
    reads = dict.fromkeys(name for body in bodies.values() for name in body.inputs if name not in makes)
    return _Job(number, segment.lane if reads else caller, bodies, segment.after, tuple(reads), tuple(makes))


class _Text:
    """Writes the function of a program.

    Args:
        jobs: in an order in which they can run.
    """

    def __init__(self, jobs: Sequence[_Job]) -> None:
        self.jobs = jobs
        self.caller = min(job.lane for job in jobs)
        self.maker = {name: job for job in jobs for name in job.makes}
        self.variables: dict[str, str] = {}
        self.ended: set[int] = set()

    def program(self, arguments: Sequence[str], returned: Sequence[str]) -> str:
        """The text: a function for each job of another lane, and that of the program."""
        functions, lines = [], []
        for job in _early(self.jobs, self.caller):
            if job.lane == self.caller:
                lines += [*self._waits(self._running(job)), *self._calls(job)]
            else:
                function, given = self._forked(job)
                functions.append(function)
                lines.append(f"ends_{job.number} = torch.jit.fork(on_lane_{job.number}, {', '.join(given)})")
        lines += self._waits(self._others(self.jobs))
        head = f"def program({', '.join(f'{self._variable(name)}: Tensor' for name in arguments)}) -> List[Tensor]:"
        end = f"return [{', '.join(map(self._variable, returned))}]"
        return "\n".join([*functions, head, *(f"    {line}" for line in (*lines, end)), ""])

    def _forked(self, job: _Job) -> tuple[str, list[str]]:
        """The function of a job of another lane, and what it is given: futures, for which it waits by itself, and values."""
        running = self._running(job)
        ends = [f"ends_{other.number}" for other in running]
        there = [self._variable(name) for name in job.reads if self.maker.get(name) not in running]
        futures = [f"{end}: Future[{_type(other)}]" for end, other in zip(ends, running, strict=True)]
        head = f"def on_lane_{job.number}({', '.join([*futures, *(f'{name}: Tensor' for name in there)])}) -> {_type(job)}:"
        lines = [*map(self._wait, running), *self._calls(job), f"return {self._tuple(job)}"]
        return "\n".join([head, *(f"    {line}" for line in lines), ""]), [*ends, *there]

    def _running(self, job: _Job) -> list[_Job]:
        """The jobs of other lanes that a job has to wait for, unless the caller has."""
        makers = [self.maker[name] for name in job.reads if name in self.maker]
        return self._others([*(self.jobs[number] for number in job.after), *makers])

    def _others(self, jobs: Sequence[_Job]) -> list[_Job]:
        found = dict.fromkeys(jobs)
        return [job for job in found if job.lane != self.caller and job.number not in self.ended]

    def _waits(self, jobs: Sequence[_Job]) -> list[str]:
        """Lines after which jobs have ended."""
        self.ended.update(job.number for job in jobs)
        return [self._wait(job) for job in jobs]

    def _wait(self, job: _Job) -> str:
        return f"{self._tuple(job)} = torch.jit.wait(ends_{job.number})"

    def _calls(self, job: _Job) -> list[str]:
        return [
            f"{', '.join(map(self._variable, body.outputs))} = {task}({', '.join(map(self._variable, body.inputs))})"
            for task, body in job.bodies.items()
        ]

    def _tuple(self, job: _Job) -> str:
        return f"({', '.join(map(self._variable, job.makes))},)"

    def _variable(self, name: str) -> str:
        """A value's variable: a number, for names of the model's may mean something to TorchScript."""
        return self.variables.setdefault(name, f"v{len(self.variables)}")


def _type(job: _Job) -> str:
    return f"Tuple[{', '.join(['Tensor'] * len(job.makes))}]"


def _early(jobs: Sequence[_Job], caller: int) -> Iterator[_Job]:
    """The jobs in an order in which those of other lanes begin as soon as those of the caller's let them."""
    waiting, begun = list(jobs), set[int]()
    while waiting:
        ready = [job for job in waiting if begun.issuperset(job.after)]
        job = next((job for job in ready if job.lane != caller), ready[0])
        waiting.remove(job)
        begun.add(job.number)
        yield job


def _compiled(source: str, functions: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """The function ``program`` of a text that calls functions of TorchScript, all in one."""
    unit: Any = torch._C.CompilationUnit()
    unit.define(source, {"torch": torch, **functions}.get)
    function = unit.find_function("program")
    passes: Any = torch._C
    graphs = [function.graph, *(node.g("Subgraph") for node in function.graph.nodes() if node.kind() == "prim::fork")]
    for graph in graphs:
        passes._jit_pass_inline(graph)
        passes._jit_pass_dce(graph)  # what a name of a function leaves behind points to nowhere once that is gone
    return Scripted(function)
