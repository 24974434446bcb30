"""Two models that PyTorch itself can block for good when two threads run their branches. Run as a program; see `test_bugs.py`.

python tests/deadlocks.py shared-leaf|stale-view CALLS
"""

from __future__ import annotations

import sys

import torch

from partitioner import partition
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import scheduled
from partitioner.planner.policies import POLICIES


class SharedLeaf(torch.nn.Module):
    """One lane makes the leaf's gradient accumulator while the other one indexes the leaf."""

    def forward(self, x: torch.Tensor, late: torch.Tensor) -> list[torch.Tensor]:
        # By the end of the product the other lane is awake, and in the middle of its slices.
        return [late @ late, x.mean(), *(x[:, number:] for number in range(60))]


class StaleView(torch.nn.Module):
    """One lane makes the view a new grad_fn, for its base was written, while the other one indexes the view."""

    def forward(self, x: torch.Tensor, late: torch.Tensor) -> list[torch.Tensor]:
        base, factor = x.clone(), x * 2
        view = base[:, :60]
        view.mul_(factor[:, :60].exp())
        base[:, :].mul_(factor)
        return [late @ late, view.mean(), *(view[:, number:] for number in range(50))]


def slices_elsewhere(problem: Problem) -> Assignment:
    """Slices on lane 1, everything else on lane 0."""
    lanes = [int(all(op.startswith("getitem") for op in label.split())) for label in problem.labels]
    return scheduled(problem, "slices_elsewhere", lanes, range(len(lanes)))


def main(which: str, calls: int) -> None:
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-6)  # give the interpreter lock away as often as can be
    POLICIES["slices_elsewhere"] = slices_elsewhere
    model = {"shared-leaf": SharedLeaf, "stale-view": StaleView}[which]()
    lanes = ["cpu:0", "cpu:1"]
    late = [torch.randn(size, size) for size in range(8, 168, 8)]
    parallel = partition(model, lanes, example_inputs=(torch.randn(3, 64), late[0]), grain=1e-9, policy="slices_elsewhere")
    for number in range(calls):
        parallel(torch.randn(3, 64, requires_grad=True), late[number % len(late)])
        if number % 100 == 0:
            print(number, flush=True)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
