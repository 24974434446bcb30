"""What is tried on the simulated accelerator, each case by its name: ``python -m simulated.cases NAME``, from ``tests``.

Eager on the CPU is what a case is held against. The kernels are the same and have one thread, so it is held to the last bit.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pretend
import pytest
import torch
from lanes import NormedTowers, Tower, assert_same, numbers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import zoo
from partitioner import partition
from partitioner.backends.streams import StreamLaunch
from partitioner.runtime.module import Parallel
from simulated.device import simulate

WAYS: dict[str, dict[str, int]] = {
    "lanes": {"mtia:0": 3},
    "devices": {"mtia:0": 2, "mtia:1": 2, "mtia:2": 1},
    "host": {"mtia:0": 2, "cpu": 2},
    "all": {"mtia:1": 2, "cpu": 1, "mtia:0": 1},
}
"""How many lanes which devices have."""

CASES: dict[str, Callable[[Any], None]] = {}


class Apart(nn.Module):
    """Branches that share nothing but the input, so that no gradient is a sum of three. Each of them gives a result."""

    def __init__(self, branches: int = 4, width: int = 16) -> None:
        super().__init__()
        self.towers = nn.ModuleList(Tower(width) for _ in range(branches))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps (batch, width) to the results of the branches."""
        return tuple(tower(x) for tower in self.towers)


def case(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Enter a case into the table, by its name."""
    CASES[run.__name__] = run
    return run


def spec(lanes: dict[str, int]) -> dict[str, Any]:
    """As for pretended devices, but with a bandwidth at which larger models have lanes, too."""
    given = pretend.spec(lanes)
    devices = [each if each["device"] == "cpu" else each | {"bandwidth": 3e7} for each in given["devices"]]
    return given | {"devices": devices}


def partitioned(model: nn.Module, *inputs: Any, way: str = "lanes", **options: Any) -> Parallel:
    """A copy of a model on simulated devices, spread over all lanes that it has branches for."""
    parallel = partition(model, example_inputs=inputs, spec=spec(WAYS[way]), policy="by_level", copy=True, **options)
    assert len(set(parallel.placement.lane.values())) > 1, "the case wants several lanes"
    return parallel


def at_home(found: Any) -> Any:
    """Results where they can be compared; each waits for what made it on the caller's stream."""
    return tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, found)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Gradients by name, on the CPU."""
    return {name: each.grad.cpu() for name, each in module.named_parameters() if each.grad is not None}


def learn(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    """One call and its backward."""
    module.zero_grad()
    found = module(*inputs, **named)
    sum(leaf.square().sum().cpu() for leaf in tree_leaves(found) if isinstance(leaf, Tensor) and leaf.requires_grad).backward()
    return at_home(found)


def hold(model: nn.Module, parallel: nn.Module, draw: Callable[[int], tuple[Any, ...]], calls: int = 8) -> None:
    """Hold calls against eager: without gradients, then with a backward."""
    for seed in range(calls):
        inputs = draw(seed)
        with torch.no_grad():
            torch.manual_seed(seed)
            expected = model(*inputs)
            torch.manual_seed(seed)
            assert_same(expected, at_home(parallel(*inputs)))
        torch.manual_seed(seed)
        expected = at_home(learn(model, *inputs))
        torch.manual_seed(seed)
        assert_same(expected, learn(parallel, *inputs))
        assert_same(gradients(model), gradients(parallel))
    assert_same(dict(model.state_dict()), at_home(dict(parallel.state_dict())))


@case
def towers(_: Any) -> None:
    """Branches, at two batch sizes, wherever they lie."""
    for way in WAYS:
        model = Apart()
        parallel = partitioned(model, numbers(4, 16), way=way)
        hold(model, parallel, lambda seed: (numbers(4 + seed % 2, 16, seed=seed),))


class Drawing(nn.Module):
    """Statistics that are counted, numbers that are drawn, and a buffer that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.towers, self.drop, self.head = NormedTowers(), nn.Dropout(0.3), nn.Linear(24, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 3)."""
        self.seen.add_(x.detach().sum(0))
        return self.head(self.drop(torch.cat([self.towers(x), x], 1)))


@case
def state(_: Any) -> None:
    """Buffers and random numbers are eager's, in train mode and in eval mode."""
    for way in WAYS:
        model = Drawing()
        parallel = partitioned(model, numbers(4, 6), way=way)
        for training in (True, False):
            hold(model.train(training), parallel.train(training), lambda seed: (numbers(4, 6, seed=seed),))


def real(name: str, _: Any) -> None:
    """A model that nobody here wrote. Attention has another kernel there, so it is equal to rounding."""
    entry = zoo.ZOO[name]
    model = entry.build().eval()
    for way in ("lanes", "all"):
        args, kwargs = entry.inputs()
        wanted = {"spec": spec(WAYS[way]), "policy": "by_level", "copy": True}
        parallel = partition(model, example_inputs=args, example_kwargs=kwargs, **wanted)
        assert len(set(parallel.placement.lane.values())) > 1
        for seed in range(3):
            args, kwargs = entry.inputs(seed=seed)
            found = [learn(module, *args, **kwargs) for module in (model, parallel)]
            torch.testing.assert_close(*map(tree_leaves, found))
            torch.testing.assert_close(*map(gradients, (model, parallel)), rtol=1e-2, atol=1e-3)


@case
def pinned(_: Any) -> None:
    """Pinned inputs are read later, and may be written once the call is over."""
    model = Apart()
    parallel = partitioned(model, numbers(4, 16))
    for seed in range(10):
        x = numbers(4, 16, seed=seed)
        given = x.pin_memory()
        assert given.is_pinned()
        with torch.no_grad():
            found = parallel(given)
            given.fill_(torch.nan)
            assert_same(model(x), at_home(found))


@case
def callers(simulated: Any) -> None:
    """A call comes after what the caller's stream does, on any stream, and leaves stream and device as they were."""
    model = Apart()
    parallel = partitioned(model, numbers(4, 16), way="devices")
    simulated.pause(2000)
    for number in range(6):
        x = numbers(4, 16, seed=number)
        side = torch.Stream(device="mtia:0")
        torch.accelerator.set_stream(side)
        torch.accelerator.set_device_index(number % 3)
        here = torch.accelerator.current_device_index()
        given = torch.zeros(4, 16, device="mtia:0")
        given += x.to("mtia:0")
        with torch.no_grad():
            found = parallel(given)
        given.fill_(torch.nan)  # issued behind the call, on the same stream
        assert torch.accelerator.current_stream(torch.device("mtia:0")) == side
        assert torch.accelerator.current_device_index() == here
        assert_same(at_home(model(x)), at_home(found))


@case
def threads(_: Any) -> None:
    """Several threads call one module, each on a stream of its own."""
    model = Apart()
    parallel = partitioned(model, numbers(4, 16), way="devices")

    def call(seed: int) -> bool:
        torch.accelerator.set_stream(torch.Stream(device="mtia:0"))
        x = numbers(4, 16, seed=seed)
        with torch.no_grad():
            return all(map(torch.equal, model(x), at_home(parallel(x))))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))


def taken(simulated: Any) -> int:
    """Bytes that tensors have once all devices are done."""
    for device in range(3):
        torch.accelerator.synchronize(device)
    return int(simulated.allocated())


@case
def memory(simulated: Any) -> None:
    """Calls leave no memory behind."""
    model = Apart()
    parallel = partitioned(model, numbers(4, 16), way="devices")

    learn(parallel, numbers(4, 16))
    parallel.zero_grad()
    before = taken(simulated)
    for seed in range(20):
        learn(parallel, numbers(4, 16, seed=seed))
    parallel.zero_grad()
    assert taken(simulated) == before


@case
def failing(simulated: Any) -> None:
    """An op that raises in the middle of a call leaves a module that works, and no memory."""
    model = Apart()
    parallel = partitioned(model, numbers(4, 16), way="devices")
    x = numbers(4, 16)
    with torch.no_grad():
        assert_same(model(x), at_home(parallel(x)))
        before = taken(simulated)
        for wrong in (numbers(4, 15), numbers(4, 16).double()):
            with pytest.raises(RuntimeError) as eager:
                model(wrong)
            with pytest.raises(RuntimeError) as found:
                parallel(wrong)
            assert str(found.value) == str(eager.value)
        del found, eager
        assert_same(model(x), at_home(parallel(x)))
    gc.collect()
    assert taken(simulated) == before


@contextmanager
def without(method: str) -> Iterator[None]:
    """The streams backend less one thing that it does."""
    with mock.patch.object(StreamLaunch, method, lambda *_: None):
        yield


def grown(module: nn.Module, x: Tensor) -> Any:
    """One call, just after the caller has written all weights."""
    with torch.no_grad():
        for number, weight in enumerate(module.parameters()):
            for _ in range(1 + number):  # so that devices have unequal work before the call
                weight.mul_(1.01)
        return at_home(module(x)[::-1])  # those of other devices first


def differs(model: nn.Module, parallel: nn.Module, calls: int = 30) -> bool:
    """Whether some call gives something else than eager."""
    found = False
    for seed in range(calls):
        x = numbers(16, 16, seed=seed)
        found = found or not all(map(torch.equal, grown(model, x), grown(parallel, x)))
    for device in range(3):
        torch.accelerator.synchronize(device)
    return found


@case
def what_is_missing_is_seen(simulated: Any) -> None:
    """The simulation would notice: without waits, joins, or regard for the caller's streams, numbers are wrong."""
    for way, missing in (("lanes", ("wait",)), ("devices", ("enter", "_join"))):
        model = Apart()
        parallel = partitioned(model, numbers(16, 16), way=way)
        simulated.pause(1000)
        assert not differs(model, parallel)
        for method in missing:
            with without(method):
                assert differs(model, parallel), f"nothing is wrong without {method}"
            model = Apart()
            parallel = partitioned(model, numbers(16, 16), way=way)


MODELS = ("torchvision/googlenet", "transformers/bert", "transformers/clip", "transformers/t5", "transformers/lxmert")

CASES |= {name: functools.partial(real, name) for name in MODELS}


def main(name: str) -> None:
    """Run one case, and say how many ops ran on streams."""
    simulated = simulate()
    CASES[name](simulated)
    print(f"{simulated.launched()} ops on streams, {simulated.at_once()} at once")


if __name__ == "__main__":
    main(sys.argv[1])
