"""Hardware by its name: what a data sheet says is filled in, and is not called assumed."""

from __future__ import annotations

import pytest
import torch

from partitioner.errors import SpecError
from partitioner.ir.machine import Machine
from partitioner.spec.discover import ACCELERATOR, USABLE_MEMORY, build_machine
from partitioner.spec.hardware import HARDWARE, REACHED, hardware_named
from partitioner.spec.spec import load_spec


def machine(*devices: dict[str, object], **fields: object) -> Machine:
    return build_machine(load_spec({"devices": list(devices), **fields}))


def fault(*devices: dict[str, object]) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec({"devices": list(devices)})
    return str(caught.value)


def test_a_named_device_has_the_figures_of_its_data_sheet() -> None:
    """99 is an index that no machine has, so that nothing found here is in the way."""
    named = machine({"device": "cuda:99", "hardware": "H100"})
    (device,), sheet = named.devices, HARDWARE["H100"]
    assert device.flops == REACHED["flops"] * sheet.rates["float32"]
    assert device.bandwidth == REACHED["bandwidth"] * sheet.bandwidth
    assert device.memory == int(USABLE_MEMORY * 80e9)
    assert device.rate("bfloat16") == REACHED["flops"] * sheet.rates["bfloat16"] > 10 * device.rate("float32")
    assert device.assumed == ("overhead", "handoff"), "what no data sheet says"


def test_what_is_written_comes_before_the_data_sheet() -> None:
    (device,) = machine({"device": "cuda:99", "hardware": "L4", "flops": "1TFLOP/s", "memory": "1GiB", "speed": 2.0}).devices
    assert (device.flops, device.rate("bfloat16"), device.memory) == (2e12, 2e12, 2**30)
    assert device.bandwidth == 2 * REACHED["bandwidth"] * 300e9


def test_without_a_name_figures_are_assumed() -> None:
    (device,) = machine({"device": "cuda:99"}).devices
    assert (device.flops, device.rates, device.memory) == (ACCELERATOR.flops, (), None)
    assert set(device.assumed) == {"flops", "bandwidth", "overhead", "handoff"}


def test_links_between_named_devices() -> None:
    devices = [{"device": "cuda:98", "hardware": "H100"}, {"device": "cuda:99", "hardware": "H100"}, {"device": "cpu"}]
    named = machine(*devices)
    link = named.link("cuda:98", "cuda:99")
    assert (link.bandwidth, link.assumed) == (REACHED["link"] * 450e9, ("latency",))
    assert named.link("cuda:98", "cpu").bandwidth == named.link("cpu", "cuda:98").bandwidth == REACHED["link"] * 64e9
    written = machine(*devices, links=[{"source": "cuda:98", "target": "cuda:99", "bandwidth": "1GB/s", "latency": "1us"}])
    assert (written.link("cuda:98", "cuda:99").bandwidth, written.link("cuda:98", "cuda:99").assumed) == (1e9, ())
    unlike = machine({"device": "cuda:98", "hardware": "H100"}, {"device": "cuda:99", "hardware": "L4"})
    assert unlike.link("cuda:98", "cuda:99").bandwidth == REACHED["link"] * 32e9, "the slower of two buses"
    half = machine({"device": "cuda:98", "hardware": "H100"}, {"device": "cuda:99"})
    assert "bandwidth" in half.link("cuda:98", "cuda:99").assumed


def test_float32_runs_on_tensor_cores_only_where_the_process_allows_it() -> None:
    sheet, before = HARDWARE["A100-80GB"], torch.get_float32_matmul_precision()
    try:
        for precision, rate in (("highest", 19.5e12), ("high", 156e12)):
            torch.set_float32_matmul_precision(precision)
            (device,) = machine({"device": "cuda:99", "hardware": "A100"}).devices
            assert device.flops == device.rate("float32") == pytest.approx(REACHED["flops"] * rate)
    finally:
        torch.set_float32_matmul_precision(before)
    assert "tf32" in sheet.rates and "tf32" not in sheet.reached()


@pytest.mark.parametrize(
    "text, name",
    [("RTX 4090", "RTX-4090"), ("nvidia geforce rtx_4090", "RTX-4090"), ("h100-sxm", "H100"), ("A100", "A100-80GB")],
)
def test_names_are_read_as_people_write_them(text: str, name: str) -> None:
    assert hardware_named(text).name == name
    assert load_spec({"devices": [{"device": "cuda:0", "hardware": text}]}).devices[0].hardware == name


def test_faults_say_how_to_go_on() -> None:
    assert 'devices[0].hardware: "H10" is no hardware that is known here; did you mean "H100"?' in fault(
        {"device": "cuda:0", "hardware": "H10"}
    )
    assert "there are H200, H100, " in fault({"device": "cuda:0", "hardware": "Z80"})
    assert "is no hardware" in fault({"device": "cuda:0", "hardware": 100})
    assert '"H100" is an accelerator, and cpu is none' in fault({"device": "cpu", "hardware": "H100"})
    assert '"CPU-core" is a CPU, and cuda:0 is none' in fault({"device": "cuda:0", "hardware": "cpu core"})


@pytest.mark.parametrize("name", HARDWARE)
def test_every_row_is_plausible_and_has_a_source(name: str) -> None:
    """Slips of a prefix or of a factor 2 for sparsity would break one of these orders."""
    row = HARDWARE[name]
    assert row.name == name and len(row.source) > 20 and hardware_named(name) is row
    rates, known = (
        row.rates,
        {str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)},
    )
    assert set(rates) - {"tf32"} <= known and "float32" in rates
    if row.kind == "cpu":
        return
    assert 5e12 < rates["float32"] < 2e14 and 1e11 < row.bandwidth < 1e13
    assert row.memory is not None and 16e9 <= row.memory < 2e11
    assert 1.9 < rates["float16"] / rates["float32"] < 20
    if "int8" in rates:
        assert 1.9 <= rates["int8"] / rates["float16"] <= 4.01
    if "tf32" in rates:
        assert rates["float32"] <= rates["tf32"] <= 0.51 * rates["float16"]
    assert 30 < rates["float32"] / row.bandwidth * 4 < 500, "FLOPs per number that is read"
    assert row.host < row.bandwidth and (row.peer is None or row.host < row.peer < row.bandwidth)
