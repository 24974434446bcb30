"""Hosts and links of ranks: what an axis of the mesh goes over, beside the mesh written out rank by rank; and specs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partitioner.distributed.predicted.communication import all_gather, all_reduce, message, reduce_scatter
from partitioner.errors import SpecError
from partitioner.ir.cluster import Cluster
from partitioner.ir.machine import Device, Link
from partitioner.spec.cluster import build_cluster, ranks_of
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.hardware import NETWORKS, REACHED, network_named
from partitioner.spec.spec import Spec, load_spec

NEAR, FAR = Link("rank", "same host", 100.0, 1.0), Link("rank", "other host", 10.0, 2.0)
CPU = Device("cpu", "cpu")

axes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Cluster, torch.Tensor]:
    """A cluster, and the ranks of its mesh as `init_device_mesh` numbers them."""
    data, pipeline, tensor = draw(axes)
    ranks = data * pipeline * tensor
    each = draw(st.sampled_from([each for each in range(1, ranks + 1) if ranks % each == 0]))
    return Cluster(ranks, each, NEAR, FAR), torch.arange(ranks).reshape(data, pipeline, tensor)


@given(meshes())
def test_a_ring_stays_within_a_host_if_each_of_its_groups_does(case: tuple[Cluster, torch.Tensor]) -> None:
    cluster, mesh = case
    _, pipeline, tensor = mesh.shape
    for dim, stride in ((0, pipeline * tensor), (1, tensor), (2, 1)):
        groups = mesh.movedim(dim, -1).flatten(0, -2) // cluster.each
        within = all(len(set(group.tolist())) == 1 for group in groups)
        found = cluster.ring(mesh.shape[dim], stride)
        assert (found == NEAR) == within or mesh.shape[dim] == 1
        if not within:
            fewest = min(min(group.tolist().count(host) for host in set(group.tolist())) for group in groups)
            assert found.latency == FAR.latency and FAR.bandwidth <= found.bandwidth <= NEAR.bandwidth
            if cluster.each % (stride * fewest) == 0 and cluster.each >= stride:
                assert found.bandwidth == min(NEAR.bandwidth, cluster.each // stride * FAR.bandwidth)


@given(meshes())
def test_the_next_stage_is_as_far_as_that_of_the_unluckiest_copy(case: tuple[Cluster, torch.Tensor]) -> None:
    cluster, mesh = case
    _, pipeline, tensor = mesh.shape
    hosts = mesh // cluster.each
    for place in range(pipeline):
        apart = bool((hosts[:, place] != hosts[:, (place + 1) % pipeline]).any())
        assert cluster.next_stage(place, pipeline, tensor) == (FAR if apart else NEAR)


@given(st.integers(1, 10**9), st.integers(1, 512))
def test_a_collective_of_one_rank_is_free_and_more_ranks_take_longer(size: int, ranks: int) -> None:
    assert all_gather(size, 1, NEAR) == all_reduce(size, 1, NEAR) == 0
    assert all_reduce(size, ranks, NEAR) == reduce_scatter(size, ranks, NEAR) + all_gather(size, ranks, NEAR)
    assert all_reduce(size, ranks, NEAR) < all_reduce(size, ranks + 1, NEAR)
    assert all_gather(size, ranks, NEAR) == pytest.approx((ranks - 1) * message(size / ranks, NEAR))


def spec(**distributed: object) -> Spec:
    return load_spec({"devices": [{"device": "cuda:99", "hardware": "H100"}], "distributed": distributed})


def cluster_of(found: Spec) -> Cluster:
    assert found.distributed is not None
    return build_cluster(found, found.distributed, Device("cuda:99", "cuda:99"))


def test_a_named_network_and_named_hardware_are_not_assumed() -> None:
    found = cluster_of(spec(mesh={"data": 16}, hosts=2, links={"between": {"network": "InfiniBand NDR", "latency": "5us"}}))
    assert (found.ranks, found.each, found.hosts) == (16, 8, 2)
    assert found.within.bandwidth == REACHED["link"] * 450e9 and found.between.bandwidth == REACHED["link"] * 50e9
    assert found.assumed == ("latency of rank -> same host",)


def test_what_nobody_says_is_one_host_and_assumed() -> None:
    asked = DistributedSpec(mesh={"data": 4})
    found = build_cluster(Spec(), asked, CPU)
    assert (found.hosts, found.each) == (1, 4)
    assert found.assumed == ("bandwidth of rank -> same host", "latency of rank -> same host")
    assert len(build_cluster(Spec(), asked.model_copy(update={"hosts": 2}), CPU).assumed) == 4


def test_hosts_come_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert build_cluster(Spec(), DistributedSpec(mesh={"data": 8}), CPU).hosts == 2
    assert build_cluster(Spec(), DistributedSpec(mesh={"data": 16}), CPU).hosts == 1, "a plan for another job"
    assert ranks_of(DistributedSpec(mesh="auto")) == 8 and ranks_of(DistributedSpec(mesh="auto", ranks=2)) == 2


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SpecError, match="9 ranks do not divide among 2 hosts"):
        cluster_of(spec(mesh={"data": 9}, hosts=2))
    with pytest.raises(SpecError, match="has to know for how many ranks: write distributed"):
        cluster_of(spec(mesh="auto"))
    with pytest.raises(SpecError, match='is no network that is known here; did you mean "InfiniBand-NDR"'):
        spec(mesh={"data": 2}, links={"between": {"network": "InfiniBand-NDX"}})
    with pytest.raises(SpecError, match="mesh"):
        spec(mesh="automatic")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_found_by_their_names(name: str) -> None:
    assert network_named(name.upper().replace("-", "_")) is NETWORKS[name] and NETWORKS[name].source


def test_auto_is_one_word_of_a_spec() -> None:
    found = spec(mesh="auto", ranks=4).distributed
    assert found is not None and found.mesh.auto and str(found.mesh) == "auto" and found.model_fields_set == {"mesh", "ranks"}
    again = DistributedSpec.model_validate_json(found.model_dump_json())
    assert again.mesh == found.mesh
