"""Two towers that meet only at the end: the shape of model that gains most from running its branches at the same time.

    python examples/two_towers.py
    python -m partitioner inspect examples/two_towers.py

Runs on the accelerators that are found, two streams on one of them if there is only one, and on two CPU lanes otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from partitioner import partition


class TwoTowers(nn.Module):
    """Scores pairs, such as queries and documents."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.query, self.document = tower(width, depth), tower(width, depth)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        return (self.query(query) * self.document(document)).sum(-1)


def tower(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


def build(width: int = 1024, depth: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return TwoTowers(width, depth).eval()


def example_inputs(width: int = 1024, batch: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, width, generator=generator), torch.randn(batch, width, generator=generator)


def find_devices() -> list[str]:
    """Every accelerator; one that is alone is named twice, which gives it two streams. Without any, two CPU lanes."""
    if not torch.accelerator.is_available():
        return ["cpu:0", "cpu:1"]
    kind, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
    return [f"{kind}:{index}" for index in range(count)] * (2 if count == 1 else 1)


def main(width: int = 1024, depth: int = 8, batch: int = 8, rounds: int = 15) -> None:
    model, inputs, devices = build(width, depth), example_inputs(width, batch), find_devices()
    accelerated = torch.accelerator.is_available()
    # On a CPU both read the same weights: of two copies, the one that was read last would be found in the cache.
    parallel = partition(model, devices, example_inputs=inputs, copy=accelerated)
    print(parallel, end="\n\n")
    serial = model.to(devices[0] if accelerated else "cpu")
    inputs = tuple(tensor.to(next(serial.parameters()).device) for tensor in inputs)
    with torch.no_grad():
        print(compare(serial(*inputs), parallel(*inputs)))
        print(race(lambda: serial(*inputs), lambda: parallel(*inputs), rounds))


def compare(wanted: Tensor, found: Tensor) -> str:
    if torch.equal(wanted, found):
        return "outputs: equal to the last bit"
    # Kernels may sum in another order when they are given another number of threads.
    return f"outputs: the largest difference is {(wanted - found).abs().max():.1e}, of values up to {wanted.abs().max():.1e}"


def race(serial: Callable[[], Tensor], parallel: Callable[[], Tensor], rounds: int) -> str:
    """Time three ways in turns, so that whatever else the machine does falls on all of them."""
    threads = torch.get_num_threads()
    ways = {
        "serial, one thread": (serial, 1),
        f"serial, {threads} threads": (serial, threads),
        f"parallel, {threads} threads": (parallel, threads),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, (run, count) in ways.items():
            torch.set_num_threads(count)
            elapsed = seconds(run)
            if number >= 2:  # the first calls warm up caches and worker threads
                taken[name].append(elapsed)
    torch.set_num_threads(threads)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    lines = [f"{name}: {median * 1e3:.2f} ms" for name, median in medians.items()]
    *serials, lanes = medians.values()
    return "\n".join([*lines, verdict(min(serials) / lanes)])


def seconds(run: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    run()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def verdict(speedup: float) -> str:
    if speedup >= 1.05:
        return f"parallel is {speedup:.2f}x as fast as the better serial run"
    if speedup > 0.95:
        return f"parallel and the better serial run are equally fast ({speedup:.2f}x)"
    return (
        f"parallel is slower here: {speedup:.2f}x of the better serial run. Is the machine busy, or are the towers too small?"
    )


if __name__ == "__main__":
    main()
