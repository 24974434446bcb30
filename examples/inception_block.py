"""An Inception block: four branches between one fork and one join. Shows which branch went where, and why.

    python examples/inception_block.py
    python -m partitioner inspect examples/inception_block.py

Convolutions already use every core for one op, so on a CPU the plan may well be to stay serial; the reason is printed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner import Parallel, partition


def convolution(source: int, target: int, size: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(source, target, size, padding=size // 2, bias=False), nn.BatchNorm2d(target), nn.ReLU(inplace=True)
    )


class Inception(nn.Module):
    """Kernels of one, three and five pixels and a pool, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.one = convolution(channels, half, 1)
        self.three = nn.Sequential(convolution(channels, half, 1), convolution(half, channels, 3))
        self.five = nn.Sequential(convolution(channels, half, 1), convolution(half, half, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(channels, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def build(channels: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return Inception(channels).eval()


def example_inputs(channels: int = 64, size: int = 28) -> Tensor:
    return torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(1))


def main(channels: int = 64, size: int = 28) -> None:
    model, x = build(channels), example_inputs(channels, size)
    expected = model(x)
    # No devices named: every accelerator that is found, otherwise one CPU lane for each core.
    parallel = partition(model, example_inputs=x)
    for branch, where in lanes_of_branches(parallel).items():
        print(f"{branch:6} {where}")
    print()
    # Calling the module gives what the model gave; the result lies where the plan's last op ran.
    found = parallel(x).to(expected.device)
    print(f"outputs: the largest difference is {(found - expected).abs().max():.1e}")
    print(f"state_dict: {'the same keys' if list(parallel.state_dict()) == list(model.state_dict()) else 'other keys'}")


def lanes_of_branches(parallel: Parallel) -> dict[str, str]:
    """Lane and reason of each branch: a plan maps ops to tasks, and tasks to lanes."""
    plan, found = parallel.plan, {}
    for op in plan.graph.ops:
        task = plan.tasks.task_of[op.name]
        lane = plan.machine.lanes[plan.placement.lane[task]]
        found[op.path.split(".")[0] or "join"] = f"{lane.name}  {plan.placement.reason[task]}"
    return found


if __name__ == "__main__":
    main()
