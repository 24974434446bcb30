"""From spec to machine: no test here needs an accelerator, and none may be touched that is absent."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from partitioner.errors import SpecError
from partitioner.ir.machine import Link, Machine
from partitioner.ir.units import BANDWIDTH, DURATION, FLOPS
from partitioner.spec import devices
from partitioner.spec import discover as module
from partitioner.spec.discover import build_machine, discover, find_device, missing_devices
from partitioner.spec.spec import Spec, load_spec

GIB = 2**30


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> int:
    """Six cores, and no accelerator."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    return 6


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two GPUs of 80 GiB that answer questions only; the list tells which were asked for their memory."""
    asked: list[str] = []

    def properties(device: torch.device) -> SimpleNamespace:
        asked.append(str(device))
        return SimpleNamespace(total_memory=80 * GIB)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(get_device_properties=properties))
    return asked


def layout(machine: Machine) -> list[tuple[str, str, int]]:
    return [(device.name, device.torch_device, device.lanes) for device in machine.devices]


# Which devices and lanes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["cpu"], [("cpu", "cpu", 1)]),
        ("cpu", [("cpu", "cpu", 1)]),
        (["cpu:0", "cpu:1"], [("cpu", "cpu", 2)]),
        (["cpu", "cpu"], [("cpu", "cpu", 2)]),
        (["cpu:5"], [("cpu", "cpu", 1)]),
        (["cuda"], [("cuda:0", "cuda:0", 1)]),
        ([torch.device("cuda"), "cuda:0"], [("cuda:0", "cuda:0", 2)]),
        (["cuda:0", "cpu"], [("cuda:0", "cuda:0", 1), ("cpu", "cpu", 1)]),
        (["cuda:1", "cpu", "cuda:0", "cuda:1"], [("cuda:1", "cuda:1", 2), ("cpu", "cpu", 1), ("cuda:0", "cuda:0", 1)]),
        (torch.device("xpu", 3), [("xpu:3", "xpu:3", 1)]),
    ],
)
def test_devices_in_order_of_the_first_mention(devices: list[str], expected: object, cores: int) -> None:
    assert layout(build_machine(Spec(), devices)) == expected


def test_lane_zero_is_the_first_device(cores: int) -> None:
    machine = build_machine(Spec(), ["cuda:0", "cpu", "cuda:0"])
    assert [lane.name for lane in machine.lanes] == ["cuda:0/0", "cuda:0/1", "cpu/0"]


def test_the_spec_says_which_devices(cores: int) -> None:
    spec = load_spec({"devices": [{"device": "cuda:0", "name": "gpu0", "lanes": 4}, {"device": "cpu", "lanes": 2}]})
    assert layout(build_machine(spec)) == [("gpu0", "cuda:0", 4), ("cpu", "cpu", 2)]


def test_devices_choose_from_the_spec_and_keep_what_it_says(cores: int) -> None:
    gpu = {"device": "cuda:0", "name": "gpu0", "lanes": 4, "memory": "16GiB"}
    spec = load_spec({"devices": [gpu, {"device": "cpu", "memory": "1GiB"}]})
    assert layout(build_machine(spec, ["cuda"])) == [("gpu0", "cuda:0", 4)]
    assert layout(build_machine(spec, ["gpu0", "cuda:0"])) == [("gpu0", "cuda:0", 2)]
    assert layout(build_machine(spec, ["xpu:0", "cpu"])) == [("xpu:0", "xpu:0", 1), ("cpu", "cpu", 1)]
    assert build_machine(spec, ["gpu0"]).devices[0].memory == 16 * GIB


@pytest.mark.parametrize("device", ["cuda:x", "foo", "", "meta", torch.device("meta"), "cuda:300", 3])
def test_refuses_unknown_devices_and_says_what_is_accepted(device: str) -> None:
    with pytest.raises(SpecError, match=r"devices\[1\]: .* is not a device; (write cpu|the index goes)"):
        build_machine(Spec(), ["cpu", device])


def test_refuses_no_devices_at_all() -> None:
    with pytest.raises(SpecError, match="devices is empty; name at least one"):
        build_machine(Spec(), [])


# Discovery ------------------------------------------------------------------------------------------------------------


def test_without_accelerators_the_cores_are_lanes(cores: int) -> None:
    assert discover() == tuple(f"cpu:{index}" for index in range(6))
    assert layout(build_machine(Spec())) == [("cpu", "cpu", 6)]


@pytest.mark.parametrize(("here", "lanes"), [(1, 1), (8, 8), (64, 8)])
def test_between_one_and_eight_cpu_lanes(monkeypatch: pytest.MonkeyPatch, cores: int, here: int, lanes: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(here)), raising=False)
    assert len(discover()) == lanes


def test_where_the_system_does_not_count_cores_torch_does(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert len(discover()) == 3


def test_accelerators_come_before_the_cpu(two_gpus: list[str]) -> None:
    assert discover() == ("cuda:0", "cuda:1")
    assert layout(build_machine(Spec())) == [("cuda:0", "cuda:0", 1), ("cuda:1", "cuda:1", 1)]


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lanes", "share"), [(1, 6), (2, 3), (4, 1), (6, 1), (12, 1)])
def test_cpu_lanes_share_the_cores(cores: int, monkeypatch: pytest.MonkeyPatch, lanes: int, share: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    device = build_machine(Spec(), ["cpu"] * lanes).devices[0]
    assert (device.flops, device.bandwidth, device.overhead, device.handoff) == (5e10, 1e10, 2e-6, 2e-5)
    assert (device.cores, device.threads_per_lane) == (cores, share)
    assert device.memory is None


def test_assumptions_about_an_accelerator(cores: int) -> None:
    device = build_machine(Spec(), ["cuda:0"]).devices[0]
    assert (device.flops, device.bandwidth, device.overhead, device.handoff) == (2e13, 1e12, 6e-6, 1e-5)


def test_the_spec_overrides_assumptions_and_speed_multiplies_rates(cores: int) -> None:
    written = {"flops": "10TFLOP/s", "bandwidth": "900GB/s", "overhead": 0, "handoff": "2us", "speed": 0.5}
    spec = load_spec({"devices": [{"device": "cuda:0", **written}, {"device": "cuda:1", "speed": 2}]})
    first, second = build_machine(spec).devices
    assert (first.flops, first.bandwidth, first.overhead, first.handoff) == (5e12, 4.5e11, 0.0, 2e-6)
    assert (second.flops, second.bandwidth, second.overhead) == (4e13, 2e12, 6e-6)


def test_memory_of_a_present_accelerator_less_a_tenth(two_gpus: list[str]) -> None:
    spec = load_spec({"devices": [{"device": "cuda:0"}, {"device": "cuda:1", "memory": "1GiB"}, {"device": "cpu"}]})
    assert [device.memory for device in build_machine(spec).devices] == [72 * GIB, GIB, None]
    assert two_gpus == ["cuda:0"]


def test_an_absent_device_is_never_touched(two_gpus: list[str]) -> None:
    machine = build_machine(Spec(), ["cuda:7", "xpu:0", "mps"])
    assert [device.memory for device in machine.devices] == [None, None, None]
    assert two_gpus == []


def test_planning_without_accelerators_asks_no_driver(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    def touched(device: object) -> NoReturn:
        raise AssertionError(f"touched {device}")

    monkeypatch.setattr(torch, "get_device_module", touched)
    machine = build_machine(Spec(), [f"cuda:{index}" for index in range(8)])
    assert len(machine.lanes) == 8


def test_a_backend_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch, two_gpus: list[str]) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert build_machine(Spec(), ["cuda:0"]).devices[0].memory is None


# Links and names ------------------------------------------------------------------------------------------------------


def test_every_ordered_pair_has_a_link(cores: int) -> None:
    machine = build_machine(Spec(), ["cuda:0", "cuda:1", "cpu"])
    assumed = ("bandwidth", "latency")
    assert machine.links == (
        Link("cuda:0", "cuda:1", 5e10, 1e-5, assumed),
        Link("cuda:0", "cpu", 1.2e10, 2e-5, assumed),
        Link("cuda:1", "cuda:0", 5e10, 1e-5, assumed),
        Link("cuda:1", "cpu", 1.2e10, 2e-5, assumed),
        Link("cpu", "cuda:0", 1.2e10, 2e-5, assumed),
        Link("cpu", "cuda:1", 1.2e10, 2e-5, assumed),
    )


def test_a_written_link_holds_one_way_and_keeps_what_it_leaves_out(cores: int) -> None:
    devices = [{"device": "cuda:0", "name": "gpu0"}, {"device": "cpu"}]
    spec = load_spec(devices=devices, links=[{"source": "cuda:0", "target": "cpu", "bandwidth": "64GB/s"}])
    assert build_machine(spec).links == (
        Link("gpu0", "cpu", 64e9, 2e-5, ("latency",)),
        Link("cpu", "gpu0", 1.2e10, 2e-5, ("bandwidth", "latency")),
    )


def test_what_is_assumed_is_told(cores: int) -> None:
    """Figures of the hardware that nobody has given, with whose they are; nothing of those that a spec gives."""
    assert build_machine(Spec(), ["cpu:0", "cpu:1"]).assumed == ("flops, bandwidth, overhead, handoff of cpu",)
    many = build_machine(Spec(), [f"cuda:{number}" for number in range(5)])
    assert many.assumed == (
        "flops, bandwidth, overhead, handoff of cuda:0, cuda:1, cuda:2 and 2 more",
        "bandwidth, latency of cuda:0 -> cuda:1, cuda:0 -> cuda:2, cuda:0 -> cuda:3 and 17 more",
    )
    figures = {"flops": 1e13, "bandwidth": 1e12, "overhead": 0, "handoff": "3us"}
    links = [{"source": "cuda:0", "target": "cpu", "bandwidth": 1e10, "latency": 0}]
    given = load_spec(devices=[{"device": "cuda:0", **figures}, {"device": "cpu", "flops": 1e10}], links=links)
    assert build_machine(given).assumed == ("bandwidth, overhead, handoff of cpu", "bandwidth, latency of cpu -> cuda:0")
    assert build_machine(given, ["cuda:0"]).assumed == ()


def test_what_is_assumed_is_written_down() -> None:
    """The figures in the design notes are those that plans are made with."""
    text = (Path(__file__).parent.parent / "docs" / "design.md").read_text()
    rows = {"CPU, for each core": module.CPU_CORE, "any accelerator": module.ACCELERATOR}
    for name, device in rows.items():
        row = re.search(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
        assert row is not None
        flops, bandwidth, overhead, handoff = row[1].split(" | ")
        assert (FLOPS.parse(flops), BANDWIDTH.parse(bandwidth)) == (device.flops, device.bandwidth)
        assert (DURATION.parse(overhead), DURATION.parse(handoff)) == (device.overhead, device.handoff)
    links = re.search(r"Links carry (\S+ \S+) after (\S+ \S+) between accelerators, and (\S+ \S+) after (\S+ \S+) to", text)
    assert links is not None
    figures = [BANDWIDTH.parse(links[1]), DURATION.parse(links[2]), BANDWIDTH.parse(links[3]), DURATION.parse(links[4])]
    assert figures == [each for link in (module.PEER_LINK, module.HOST_LINK) for each in (link.bandwidth, link.latency)]
    assert f"of which {module.USABLE_MEMORY} may be planned with" in text


@pytest.mark.parametrize("devices", [2, 2.0, True, {"cpu": 2}, {"cpu"}, b"cpu", torch.ones(2)])
def test_devices_that_are_no_list(devices: Any) -> None:
    """A set has no first device, and the numbers in a mapping would be lost."""
    with pytest.raises(SpecError, match=r"devices is .*; name them in a list, one mention for each lane"):
        build_machine(Spec(), devices)


def test_devices_from_any_iterable(cores: int) -> None:
    assert build_machine(Spec(), (f"cpu:{number}" for number in range(2))).devices[0].lanes == 2  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r'"cpu:0,cpu:1" is not a device; .*write a list: \["cuda:0", "cuda:1"\]'):
        build_machine(Spec(), "cpu:0,cpu:1")


def test_links_of_devices_that_are_not_chosen_are_dropped(cores: int) -> None:
    devices = [{"device": "cuda:0"}, {"device": "cuda:1"}]
    spec = load_spec(devices=devices, links=[{"source": "cuda:0", "target": "cuda:1"}])
    assert build_machine(spec, ["cuda:1"]).links == ()


def test_a_pin_outside_the_machine_is_a_fault(cores: int) -> None:
    devices = [{"device": "cuda:0"}, {"device": "cuda:1"}]
    spec = load_spec(devices=devices, pins=[{"match": "a", "device": "cuda:0"}])
    build_machine(spec)
    with pytest.raises(SpecError, match=r'pins\[0\].device: "cuda:0" is not in this machine, which has cuda:1'):
        build_machine(spec, ["cuda:1"])


def test_names_are_checked_against_what_was_found(cores: int) -> None:
    spec = load_spec(links=[{"source": "gpu0", "target": "gpu1"}])
    with pytest.raises(SpecError) as caught:
        build_machine(spec)
    assert str(caught.value).count("is not in this machine, which has cpu") == 2


def test_find_device_by_name_and_by_torch_device(cores: int) -> None:
    machine = build_machine(load_spec(devices=[{"device": "cuda:0", "name": "gpu0"}, {"device": "cpu"}]))
    found = [find_device(machine, text) for text in ("gpu0", "cuda", "cuda:0", "cpu:1", "cuda:1", "nonsense")]
    assert [device.name if device else None for device in found] == ["gpu0", "gpu0", "gpu0", "cpu", None, None]


def test_missing_devices(two_gpus: list[str]) -> None:
    machine = build_machine(Spec(), ["cuda:1", "cuda:2", "cpu", "xpu:0", "cuda:2"])
    assert missing_devices(machine) == ["cuda:2", "xpu:0"]


def test_nothing_is_missing_of_what_is_found() -> None:
    assert missing_devices(build_machine(Spec())) == []
    assert devices.cores() >= 1
