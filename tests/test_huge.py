"""Models that no machine at hand could hold: planned on the meta device, then loaded, each tensor where it belongs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pretend
import pytest
import torch
from lanes import Towers, assert_same, numbers, spec
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner import InputError, PlacementError, SpecError, partition
from partitioner.distributed import plan as job_plan
from partitioner.driver import planned
from partitioner.ir.liveness import peak_bytes
from partitioner.ir.plan import Plan, resident_bytes, state_devices
from partitioner.runtime.materialise import materialise

safetensors = pytest.importorskip("safetensors.torch")

GIB = 2**30


class Block(nn.Module):
    """A decoder layer: attention with fewer heads for keys, and a gated MLP."""

    def __init__(self, width: int, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        side = width // heads * groups
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for size in (width, side, side))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, length, width) to the same shape."""
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (count, -1)).transpose(1, 2) for part, count in self._parts())
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _parts(self) -> list[tuple[nn.Module, int]]:
        return [(self.q, self.heads), (self.k, self.groups), (self.v, self.groups)]


class Decoder(nn.Module):
    """A language model of Llama's shape."""

    def __init__(self, layers: int, width: int, hidden: int, heads: int, groups: int, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, hidden, heads, groups) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of each next word."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpus(count: int, memory: str) -> dict[str, Any]:
    return {"devices": [{"name": f"gpu{n}", "device": f"cuda:{n}", "memory": memory} for n in range(count)]}


def on_meta(*sizes: int) -> nn.Module:
    with torch.device("meta"):
        return Decoder(*sizes).to(torch.bfloat16).eval()


WIDE = (16384, 53248, 128, 8, 128256)
"""The sizes of Llama 3.1 405B but the number of its layers, 126."""


def peak() -> float:
    """The most memory that this process has had so far, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def peaks(code: str) -> list[float]:
    """What a new process prints that runs ``code``, with the names of this file."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from test_huge import *\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


measured = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is asked of Linux")


# Planning -------------------------------------------------------------------------------------------------------------


def assert_fits(plan: Plan) -> None:
    """State and live values are within each device's memory."""
    caps = {each.torch_device: each.memory for each in plan.machine.devices}
    state, live = resident_bytes(plan), peak_bytes(plan.program)
    for device, cap in caps.items():
        assert state.get(device, 0) + live.get(device, (0, 0))[0] <= (cap or 0)


@pytest.mark.parametrize("policy", ["fit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chain", "list"))])
def test_a_model_larger_than_any_memory_is_planned(policy: str) -> None:
    """6 layers of 405B, 46 GiB with the embeddings, on 128 devices of 9 GiB."""
    plan = planned(
        on_meta(6, *WIDE), example_inputs=torch.zeros(1, 256, dtype=torch.long), spec=gpus(128, "9GiB"), policy=policy
    )
    assert sum(resident_bytes(plan).values()) > 40 * GIB
    assert len(set(state_devices(plan).values())) >= 5
    assert_fits(plan)


@measured
def test_planning_allocates_no_weight() -> None:
    """Half a gibibyte is torch itself; the model would be 23 GiB. In MiB."""
    before, after = peaks(
        """
model = on_meta(3, *WIDE)
print(peak())
planned(model, example_inputs=torch.zeros(1, 256, dtype=torch.long), spec=gpus(32, "9GiB"), policy="fit")
print(peak())
"""
    )
    assert after < 2048 and after - before < 512


class Chain(nn.Module):
    """Layers of 64 MiB each, through which 64 MiB pass."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (4096, 4096) to the same shape."""
        result: Tensor = self.layers(x)
        return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["fit", "chain", "list", "by_level"])
def test_state_leaves_room_for_what_is_computed(policy: str) -> None:
    """8 layers fill one device of 512 MiB to the brim, so two are needed for the values between layers."""
    with torch.device("meta"):
        model, x = Chain(8), torch.zeros(4096, 4096)
    plan = planned(model, example_inputs=x, spec=gpus(3, "512MiB") | {"grain": 1e-9, "training": False}, policy=policy)
    assert sum(resident_bytes(plan).values()) == 512 * 2**20
    assert_fits(plan)


class Lookup(nn.Module):
    """A table of 448 MiB, of which one row of 16 KiB is read, and layers of 64 MiB through which 64 MiB pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7 * 4096, 4096)
        self.layers = Chain(4)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps one number to (4096, 4096)."""
        result: Tensor = self.layers(self.embed(ids).expand(4096, 4096).contiguous())
        return result


def test_a_device_without_room_to_spare_does_not_stop_the_others() -> None:
    """The table fills its device, where little is computed; the four layers fill the next one, and then leave room there."""
    sizes = {"gpu0": "464MiB", "gpu1": "256MiB", "gpu2": "448MiB"}  # beside the table there is room for a stream's workspace
    machine = {"devices": [{"name": name, "device": f"cuda:{name[-1]}", "memory": size} for name, size in sizes.items()]}
    pins = [{"match": "embed*", "device": "gpu0"}, {"match": "layers.layers.0*", "device": "gpu1"}]
    asked = machine | {"pins": pins, "grain": 1e-9, "training": False}
    with torch.device("meta"):
        model, ids = Lookup(), torch.zeros(1, dtype=torch.long)
    assert_fits(planned(model, example_inputs=ids, spec=asked, policy="fit"))


def test_what_has_no_room_anywhere_is_refused() -> None:
    with torch.device("meta"):
        model, x = Chain(8), torch.zeros(4096, 4096)
    with pytest.raises(PlacementError, match="of live values"):
        planned(model, example_inputs=x, spec=gpus(1, "512MiB") | {"grain": 1e-9, "training": False}, policy="fit")


# Loading --------------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A tie, a buffer, channels last, and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.conv = nn.Conv2d(3, 4, 2)
        self.norm = nn.BatchNorm1d(8)
        self.angles = Angles()

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.norm(self.embed(ids) + self.angles.angles)) + self.conv.weight.sum()


class Angles(nn.Module):
    """A buffer that is computed, as that of a rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.empty(8), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute it."""
        with torch.no_grad():
            self.angles.copy_(torch.arange(8) / 8)


def net(*, meta: bool = False) -> Net:
    with torch.device("meta" if meta else "cpu"):
        torch.manual_seed(0)
        model = Net()
        model.conv.to(memory_format=torch.channels_last)
        return model.eval()


def save(model: nn.Module, folder: Path, shards: int = 3, **changed: Tensor | None) -> Path:
    """A checkpoint in several files with an index, as transformers writes one: a tie once."""
    once: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        once.setdefault(id(tensor), (name, tensor.detach().contiguous()))
    tensors = dict(once.values()) | changed
    held = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    places = {name: f"model-{number % shards + 1:05}-of-{shards:05}.safetensors" for number, name in enumerate(held)}
    for file in set(places.values()):
        safetensors.save_file({name: held[name] for name in held if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def test_every_tensor_is_loaded_as_it_was(tmp_path: Path) -> None:
    model, loaded = net(), net(meta=True)
    loaded.norm.weight.requires_grad_(False)
    materialise(loaded, save(model, tmp_path))
    wanted, found = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert list(wanted) == list(found) and all(isinstance(each, nn.Parameter) for each in found.values())
    theirs = {**loaded.state_dict(), **dict(loaded.named_buffers())}
    for name, tensor in (*model.state_dict().items(), *model.named_buffers()):
        assert_same(tensor, theirs[name])
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.conv.weight.stride() == model.conv.weight.stride() != model.conv.weight.contiguous().stride()
    assert [each.requires_grad for each in found.values()].count(False) == 1 and not loaded.norm.weight.requires_grad
    for file in tmp_path.iterdir():  # what was loaded is in memory of its own, and not a window on the file
        file.write_bytes(b"\0" * file.stat().st_size)
    assert_same(model(torch.arange(4)), loaded(torch.arange(4)))


@pytest.mark.parametrize("place", ["", "model.safetensors.index.json", "one.safetensors"])
def test_a_folder_an_index_or_a_file(tmp_path: Path, place: str) -> None:
    model, loaded = net(), net(meta=True)
    if place.startswith("one"):
        safetensors.save_model(model, str(tmp_path / place))
    else:
        save(model, tmp_path)
    materialise(loaded, tmp_path / place)
    assert_same(model(torch.arange(4)), loaded(torch.arange(4)))


def test_weights_that_are_no_path_are_refused() -> None:
    """pathlib's error came, of a place of another type."""
    with pytest.raises(SpecError, match="3: no checkpoint"):
        materialise(net(meta=True), 3)  # type: ignore[arg-type]


def test_each_tensor_goes_to_its_device(tmp_path: Path) -> None:
    """The meta device stands for another one: what goes there has a device and no values."""
    loaded = net(meta=True)
    materialise(loaded, save(net(), tmp_path), {"head.weight": "cpu", "norm.weight": "cpu"}, default="meta")
    assert {name for name, each in loaded.named_parameters() if not each.is_meta} == {"embed.weight", "norm.weight"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_planned_model_is_loaded_and_runs(tmp_path: Path, device: str) -> None:
    """Of examples without values the loaded model was called, which fails on them."""
    model = net()
    save(model, tmp_path)
    parallel = partition(net(meta=True), example_inputs=torch.arange(4, device=device), spec=spec(2), weights=tmp_path)
    for ids in (torch.arange(4), torch.arange(6)):
        assert_same(model(ids), parallel(ids))
    assert not any(each.is_meta for each in parallel.state_dict().values())


class Places(nn.Module):
    """Makes tensors without saying where, and one that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places, self.head = nn.Embedding(11, 8), nn.Embedding(16, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps (batch, length) to (batch, length, 8)."""
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        mask = torch.tril(torch.ones(ids.shape[1], ids.shape[1])) * torch.tensor(0.5)
        return self.head(mask @ x) * torch.tensor([1.0, 2.0] * 4, device=x.device)


def test_what_forward_makes_has_no_values_either_where_weights_have_none(tmp_path: Path) -> None:
    """It lay on the CPU, beside weights on meta; and what `torch.tensor` makes on meta was no fake."""
    model, ids = Places(), torch.arange(8).reshape(2, 4)
    save(model, tmp_path)
    with torch.device("meta"):
        bare = Places()
    assert {op.name for op in planned(bare, ["cpu:0", "cpu:1"], example_inputs=ids).graph.ops} >= {"arange", "tril", "tensor"}
    found = job_plan(bare, ids, {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 2}})
    assert str(found).startswith("Places: data 1 x pipeline 2")
    assert_same(model(ids), partition(bare, example_inputs=ids, spec=spec(2), weights=tmp_path)(ids))
    assert torch.get_default_device().type == "cpu"


def test_a_model_on_several_devices_is_loaded_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """On accelerators that are pretended: values are read as on a CPU, and then said to lie where the plan wants them."""
    from partitioner.runtime import materialise as room

    def read(sources: dict[Any, Any], part: Any) -> Any:
        on_cpu = {replace(slot, device="cpu"): (slot, stored) for slot, stored in sources.items()}
        for slot, values in real({slot: stored for slot, (_, stored) in on_cpu.items()}, part):
            yield on_cpu[slot][0], values

    real = room._read
    monkeypatch.setattr(room, "_read", read)
    torch.manual_seed(0)
    model = Towers().eval()
    x = numbers(4, 6)
    expected = model(x).detach()
    save(model, tmp_path)
    with torch.device("meta"):
        bare = Towers().eval()
    with pretend.pretending(monkeypatch) as world, torch.no_grad():
        machine = pretend.spec(pretend.TWO)
        parallel = partition(bare, example_inputs=x, spec=machine, weights=tmp_path)
        placed = {str(each.device) for each in parallel.parameters()}
        assert placed == {"lazy:0", "lazy:1"} == set(state_devices(parallel.plan).values())
        found = parallel(x)
        assert world.faults() == []
    assert_same(expected, found.detach())


def test_weights_need_a_call_and_a_place(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="give example_inputs"):
        partition(net(meta=True), ["cpu"], weights=save(net(), tmp_path))
    with pytest.raises(InputError, match=r"meta device.*weights="):
        partition(net(meta=True), ["cpu"], example_inputs=torch.arange(4))


def test_what_has_values_keeps_them(tmp_path: Path) -> None:
    loaded = net(meta=True)
    loaded.norm = net().norm
    loaded.norm.running_mean.fill_(3)
    save(net(), tmp_path, **{name: None for name in net().state_dict() if name.startswith("norm")})
    materialise(loaded, tmp_path)
    assert loaded.norm.running_mean.eq(3).all() and not loaded.embed.weight.is_meta


# Refusing -------------------------------------------------------------------------------------------------------------


def assert_untouched(model: nn.Module, wanted: dict[str, int]) -> None:
    assert {name: id(each) for name, each in model.state_dict(keep_vars=True).items()} == wanted
    assert all(each.is_meta for each in model.state_dict().values())


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    model = net(meta=True)
    before = {name: id(each) for name, each in model.state_dict(keep_vars=True).items()}
    changed = {"norm.bias": None, "norm.weight": numbers(9), "conv.bias": numbers(4).double(), "extra.weight": numbers(1)}
    with pytest.raises(SpecError) as caught:
        materialise(model, save(net(), tmp_path, **changed))
    for words in (
        "norm.bias is missing",
        "norm.weight is float32[8] in the model and float32[9] in model-0",
        "conv.bias is float32[4] in the model and float64[4] in model-0",
        "extra.weight is in the checkpoint, and not in the model",
    ):
        assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 5
    assert_untouched(model, before)


def test_a_file_that_fails_half_way_leaves_the_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are there when headers are read, and the last is cut when its values are."""
    from partitioner.runtime import materialise as room

    save(net(), tmp_path)
    last = max(tmp_path.glob("*.safetensors"))
    read = room._read

    def cut(sources: Any, part: Any) -> Any:
        last.write_bytes(last.read_bytes()[:40])
        return read(sources, part)

    monkeypatch.setattr(room, "_read", cut)
    model = net(meta=True)
    before = {name: id(each) for name, each in model.state_dict(keep_vars=True).items()}
    with pytest.raises(SpecError, match=f"{last.name}.*cannot be loaded on cpu"):
        materialise(model, tmp_path)
    assert_untouched(model, before)


class Fixed(nn.Module):
    """A buffer that its module computes when it is made, and never again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("steps", torch.arange(2.0), persistent=False)


def test_a_buffer_that_nothing_computes_is_named(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Fixed()
    safetensors.save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match="steps is a buffer that no checkpoint holds"):
        materialise(model, tmp_path)
    model.steps = torch.arange(2.0)  # but one that was built with values is fine
    materialise(model, tmp_path)
    assert_same(model.steps, torch.arange(2.0))
    with torch.device("meta"):
        odd = nn.ReLU()
        odd.table = torch.ones(2)
    safetensors.save_file({}, tmp_path / "none.safetensors")
    with pytest.raises(SpecError, match="table is a tensor in an attribute"):
        materialise(odd, tmp_path / "none.safetensors")


def test_a_checkpoint_may_hold_what_is_computed(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Fixed()
    safetensors.save_file({"weight": torch.ones(2), "steps": torch.full((2,), 5.0)}, tmp_path / "model.safetensors")
    materialise(model, tmp_path)
    assert_same(model.steps, torch.full((2,), 5.0))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"weight": "../secret.safetensors"}}, "not the name of a .safetensors file beside it"),
        ({"weight_map": {"weight": "/etc/passwd"}}, "not the name of a .safetensors file beside it"),
        ({"weight_map": {"weight": "model.bin"}}, "not the name of a .safetensors file beside it"),
        ({"weight_map": {"weight": "missing.safetensors"}}, "missing.safetensors: cannot be read"),
        ({"weight_map": {"weight": "broken.safetensors"}}, "broken.safetensors: cannot be read"),
        ({"weight_map": {"weights": "good.safetensors"}}, "weights should be in good.safetensors, and is not"),
        ({"weight_map": ["weight"]}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_is_never_trusted(tmp_path: Path, index: Any, words: str) -> None:
    safetensors.save_file({"weight": torch.ones(2)}, tmp_path / "good.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SpecError, match=words):
        materialise(Fixed(), tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [((), "no .safetensors file"), (("a", "b"), r"several checkpoints.*a\.safetensors, b\.safetensors")],
)
def test_a_folder_without_one_checkpoint_is_refused(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    for name in files:
        safetensors.save_file({"weight": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    for place, said in ((tmp_path, words), (tmp_path / "none.bin", "neither a folder"), (tmp_path / "x.safetensors", "x.safe")):
        with pytest.raises(SpecError, match=said):
            materialise(Fixed(), place)


# Memory ---------------------------------------------------------------------------------------------------------------

SHARDS, MIB = 8, 32


@measured
def test_host_memory_is_the_model_and_one_shard(tmp_path: Path) -> None:
    """On a CPU the model itself is in host memory; beyond it there is never much more than one of its files."""
    layers = [torch.full((MIB * 2**18,), float(number)) for number in range(SHARDS)]
    model = nn.ParameterList(layers)
    save(model, tmp_path, SHARDS)
    del model, layers
    before, after = peaks(
        f"""
with torch.device("meta"):
    model = nn.ParameterList([torch.empty({MIB} * 2**18) for _ in range({SHARDS})])
print(peak())
materialise(model, {str(tmp_path)!r})
print(peak())
assert [each[-1].item() for each in model] == [*range({SHARDS})]
"""
    )
    assert (SHARDS - 1) * MIB < after - before < (SHARDS + 1) * MIB + 24
