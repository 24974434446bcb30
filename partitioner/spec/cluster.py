"""Spec to cluster: on which hosts the ranks of a job are, and what they have to each other.

What the spec does not say is that of a data sheet, where hardware or network has a name; else what torchrun says, one host, and
the links that `partitioner.spec.discover` assumes of devices.
"""

from __future__ import annotations

import os
from dataclasses import replace

from partitioner.errors import SpecError
from partitioner.ir.cluster import Cluster
from partitioner.ir.machine import Device
from partitioner.ir.units import quote
from partitioner.spec.discover import HOST_LINK, PEER_LINK, link_of
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.hardware import HARDWARE, NETWORKS, link_between
from partitioner.spec.spec import Spec


def build_cluster(spec: Spec, asked: DistributedSpec, device: Device) -> Cluster:
    """The cluster that a spec describes.

    Args:
        spec: whose first device, if it has a name in the table of hardware, says what is within a host.
        asked: the section ``distributed``, with its mesh or its number of ranks.
        device: what each rank is taken to have.

    Raises:
        SpecError: the ranks do not divide among the hosts.

    Example:
        >>> asked = DistributedSpec(mesh={"data": 16}, hosts=2, links={"between": {"network": "InfiniBand-NDR"}})
        >>> spec = Spec(devices=[{"device": "cuda:0", "hardware": "H100"}], distributed=asked)
        >>> print(build_cluster(spec, asked, Device("cuda:0", "cuda:0")))
        16 ranks on 2 hosts, 360 GB/s after 10 us within a host, 40 GB/s after 10 us between hosts
    """
    ranks = ranks_of(asked)
    hosts = asked.hosts or _hosts_of_job(ranks)
    if ranks % hosts:
        raise SpecError(f"{ranks} ranks do not divide among {hosts} hosts; change one of them")
    sheet = next((HARDWARE[entry.hardware] for entry in spec.devices[:1] if entry.hardware), None)
    base = HOST_LINK if device.kind == "cpu" else PEER_LINK
    links = (("same host", asked.links.within, link_between(sheet, sheet)), ("other host", asked.links.between, None))
    within, between = (
        link_of(replace(base, source="rank", target=target), said, NETWORKS[said.network].reached if said.network else reached)
        for target, said, reached in links
    )
    return Cluster(ranks, ranks // hosts, within, between)


def ranks_of(asked: DistributedSpec) -> int:
    """How many ranks there are: the mesh's, those that the section names, or those of the job that this process is of.

    Raises:
        SpecError: ``mesh: auto`` does not say for how many, and this process is of no job.
    """
    if not asked.mesh.auto:
        return asked.mesh.size
    if asked.ranks is None and "WORLD_SIZE" not in os.environ:
        raise SpecError(
            "mesh: auto has to know for how many ranks: write distributed: {mesh: auto, ranks: 8}, or start the program "
            "with torchrun"
        )
    return asked.ranks or from_torchrun("WORLD_SIZE")


def _hosts_of_job(ranks: int) -> int:
    """As many as torchrun has started ``ranks`` on; one in a program that is no job."""
    each = from_torchrun("LOCAL_WORLD_SIZE", "0")
    return ranks // each if each and ranks % each == 0 and str(ranks) == os.environ.get("WORLD_SIZE") else 1


def from_torchrun(name: str, default: str = "") -> int:
    """A number that torchrun puts into the environment of each process.

    Raises:
        SpecError: it is not there, and there is no default; or it is no number.
    """
    said = os.environ.get(name, default)
    if not (said.isascii() and said.isdigit()):
        raise SpecError(f"{name} is {quote(said)} in the environment, where torchrun puts a number: start the program with it")
    return int(said)
