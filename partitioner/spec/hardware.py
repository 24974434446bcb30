"""Figures of hardware by its name, from the vendors' data sheets, for machines that are planned for and not at hand.

A data sheet says what can never be exceeded; `REACHED` says which part of it large matrix products, sums of large tensors and
large copies reach, and is the one thing here that is assumed. Rates are dense: without structured sparsity, which data sheets
like to count twice. Where a data sheet gives a tensor core's rate with 16-bit and with 32-bit sums, it is the latter, in which
torch sums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from partitioner.errors import SpecError
from partitioner.ir.units import quote
from partitioner.ir.words import hint

REACHED = {"flops": 0.7, "bandwidth": 0.85, "link": 0.8}
"""The part of a data sheet's figures that large ops and copies reach: the efficiency factors of this table."""


@dataclass(frozen=True)
class Hardware:
    """One line of a data sheet.

    Args:
        name: what it is called here.
        source: the document that says so.
        memory: bytes; ``None`` where it is not part of the hardware.
        bandwidth: bytes/s between memory and arithmetic.
        rates: FLOP/s by dtype, dense; ``tf32`` is float32 on tensor cores, which torch uses where it is allowed to.
        host: bytes/s to or from the host, one way.
        peer: bytes/s to or from all of its like together, one way; ``None`` where they are reached over the host's bus.
        kind: torch device type that it is found behind.
    """

    name: str
    source: str
    memory: int | None
    bandwidth: float
    rates: Mapping[str, float]
    host: float
    peer: float | None = None
    kind: str = "cuda"
    other_names: tuple[str, ...] = field(default=())

    def reached(self, tf32: bool = False) -> dict[str, float]:
        """FLOP/s by dtype that large matrix products reach.

        Args:
            tf32: whether float32 products may run on tensor cores.

        >>> HARDWARE["A100-80GB"].reached()["bfloat16"] / 1e12
        218.4
        """
        rates = {dtype: REACHED["flops"] * rate for dtype, rate in self.rates.items()}
        fast = rates.pop("tf32", 0.0)
        return {**rates, "float32": fast if tf32 and fast else rates["float32"]}


def _tera(**rates: float) -> dict[str, float]:
    """Rates in TFLOP/s. What runs in 16 bits is written once where both kinds of it are equally fast."""
    half = rates.pop("half", None)
    both = {} if half is None else {"float16": half, "bfloat16": half}
    return {dtype: 1e12 * rate for dtype, rate in {**rates, **both}.items()}


_GB = 10**9
_HOPPER = _tera(float64=34, float32=67, tf32=494.7, half=989.4, float8_e4m3fn=1978.9, float8_e5m2=1978.9, int8=1978.9)
_A100 = _tera(float64=9.7, float32=19.5, tf32=156, half=312, int8=624)
_PCIE3, _PCIE4, _PCIE5 = 16e9, 32e9, 64e9


def _sheet(product: str, note: str = "", page: str = "") -> str:
    """The source of a line: NVIDIA's data sheet of a product."""
    return f"NVIDIA {product} data sheet (nvidia.com/en-us/data-center/{page or product.split()[0].lower()}){note}"


_L4 = _tera(float32=30.3, tf32=60, half=121, float8_e4m3fn=242.5, float8_e5m2=242.5, int8=242.5)
_L40S = _tera(float32=91.6, tf32=183, half=362.05, float8_e4m3fn=733, float8_e5m2=733, int8=733)
_ADA = _tera(float32=82.6, tf32=82.6, half=165.2, float8_e4m3fn=330.3, float8_e5m2=330.3, int8=660.6)
_AMPERE = _tera(float32=35.6, tf32=35.6, half=71, int8=284)
_VOLTA = _tera(float64=7.8, float32=15.7, float16=125)
_H100_PCIE = _tera(float64=26, float32=51, tf32=378, half=756, float8_e4m3fn=1513, float8_e5m2=1513, int8=1513)
_CDNA3 = _tera(
    float64=163.4, float32=163.4, tf32=653.7, half=1307.4, float8_e4m3fnuz=2614.9, float8_e5m2fnuz=2614.9, int8=2614.9
)
_A40, _A80 = _sheet("A100 Tensor Core GPU", ", 40 GB SXM"), _sheet("A100 Tensor Core GPU", ", 80 GB SXM")
_SXM5 = _sheet("H100 Tensor Core GPU", ", SXM5; H100 white paper, table 3")
_BRIDGED = _sheet("H100 Tensor Core GPU", ", PCIe; NVLink bridges two of them")
_WHITE_PAPER = "NVIDIA {} GPU Architecture white paper, GeForce RTX {}"
_AMD = "AMD Instinct MI300X accelerator data sheet (amd.com/en/products/accelerators/instinct/mi300/mi300x.html)"
_COUNTED = "arithmetic, no data sheet: 3 GHz, two AVX2 units of eight float32 that multiply and add; a share of memory channels"

_ROWS = (
    Hardware(
        "H200", _sheet("H200 Tensor Core GPU", ", SXM"), 141 * _GB, 4.8e12, _HOPPER, _PCIE5, 450e9, other_names=("H200-SXM",)
    ),
    Hardware("H100", _SXM5, 80 * _GB, 3.35e12, _HOPPER, _PCIE5, 450e9, other_names=("H100-SXM", "H100-SXM5")),
    Hardware("H100-PCIe", _BRIDGED, 80 * _GB, 2e12, _H100_PCIE, _PCIE5, 300e9),
    Hardware("A100-40GB", _A40, 40 * _GB, 1.555e12, _A100, _PCIE4, 300e9),
    Hardware("A100-80GB", _A80, 80 * _GB, 2.039e12, _A100, _PCIE4, 300e9, other_names=("A100",)),
    Hardware("L4", _sheet("L4 Tensor Core GPU", ", its sparse rates halved"), 24 * _GB, 300e9, _L4, _PCIE4),
    Hardware("L40S", _sheet("L40S GPU"), 48 * _GB, 864e9, _L40S, _PCIE4),
    Hardware("RTX-4090", _WHITE_PAPER.format("Ada", 4090), 24 * _GB, 1008e9, _ADA, _PCIE4),
    Hardware("RTX-3090", _WHITE_PAPER.format("Ampere GA102", 3090), 24 * _GB, 936e9, _AMPERE, _PCIE4),
    Hardware("V100", _sheet("V100 Tensor Core GPU", ", 32 GB SXM2"), 32 * _GB, 900e9, _VOLTA, _PCIE3, 150e9),
    Hardware("T4", _sheet("T4", page="tesla-t4"), 16 * _GB, 300e9, _tera(float32=8.1, float16=65, int8=130), _PCIE3),
    Hardware("MI300X", _AMD, 192 * _GB, 5.3e12, _CDNA3, _PCIE5, 448e9),
    Hardware("CPU-core", _COUNTED, None, 12e9, _tera(float32=0.096, float64=0.048), _PCIE4, kind="cpu"),
)

HARDWARE: dict[str, Hardware] = {row.name: row for row in _ROWS}
"""What can be named, by its name."""


def hardware_named(text: object) -> Hardware:
    """The hardware that a spec means: case, spaces, ``-`` and ``_`` do not matter, nor does the vendor's name in front.

    Raises:
        SpecError: nothing is called that.

    >>> hardware_named("NVIDIA RTX 4090").name, hardware_named("h100").name
    ('RTX-4090', 'H100')
    """
    word = _bare(text)
    for vendor in ("nvidia", "amd", "geforce", "instinct", "tesla"):
        word = word.removeprefix(vendor)
    for row in _ROWS:
        if word in map(_bare, (row.name, *row.other_names)):
            return row
    raise SpecError(f"{quote(text)} is no hardware that is known here{hint(word, HARDWARE)}")


def _bare(text: object) -> str:
    """A name without case and what stands between its parts; ``""`` of what is no text."""
    return re.sub(r"[\s_-]+", "", text).casefold() if isinstance(text, str) else ""


@dataclass(frozen=True)
class Network:
    """One line of a network adapter's data sheet.

    Args:
        name: what it is called here.
        source: the document that says so.
        bandwidth: bytes/s, one way.
    """

    name: str
    source: str
    bandwidth: float

    @property
    def reached(self) -> float:
        """Bytes/s that large messages reach.

        >>> NETWORKS["InfiniBand-NDR"].reached / 1e9
        40.0
        """
        return REACHED["link"] * self.bandwidth


_IEEE = "IEEE Std 802.3-2022; RoCE carries messages of ranks over it"
NETWORKS: dict[str, Network] = {
    row.name: row
    for row in (
        Network("InfiniBand-NDR", "NVIDIA ConnectX-7 data sheet, 400 Gb/s for each port", 50e9),
        Network("InfiniBand-HDR", "NVIDIA ConnectX-6 data sheet, 200 Gb/s for each port", 25e9),
        Network("InfiniBand-EDR", "NVIDIA ConnectX-5 data sheet, 100 Gb/s for each port", 12.5e9),
        Network("Ethernet-400G", _IEEE, 50e9),
        Network("Ethernet-200G", _IEEE, 25e9),
        Network("Ethernet-100G", _IEEE, 12.5e9),
        Network("Ethernet-25G", _IEEE, 3.125e9),
        Network("Ethernet-10G", _IEEE, 1.25e9),
    )
}
"""Networks between hosts that can be named, by name. A rank's share is one port where each rank has its own."""


def network_named(text: object) -> Network:
    """The network that a spec means; case, spaces, ``-`` and ``_`` do not matter.

    Raises:
        SpecError: nothing is called that.

    >>> network_named("infiniband ndr").name
    'InfiniBand-NDR'
    """
    for name, network in NETWORKS.items():
        if _bare(name) == _bare(text):
            return network
    raise SpecError(f"{quote(text)} is no network that is known here{hint(text, NETWORKS)}")


def link_between(one: Hardware | None, other: Hardware | None) -> float | None:
    """Bytes/s that large copies reach from one piece of hardware to another; ``None`` where a name is missing.

    To or from a CPU it is the accelerator's bus to the host. Between two of a kind it is their own link, if they have one.

    >>> link_between(HARDWARE["H100"], HARDWARE["H100"]) / 1e9, link_between(HARDWARE["L4"], HARDWARE["CPU-core"]) / 1e9
    (360.0, 25.6)
    >>> link_between(HARDWARE["CPU-core"], HARDWARE["CPU-core"]) is None
    True
    """
    if one is None or other is None:
        return None
    if one == other and one.peer is not None:
        return REACHED["link"] * one.peer
    buses = [each.host for each in (one, other) if each.kind != "cpu"]
    return REACHED["link"] * min(buses) if buses else None
