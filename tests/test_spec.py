"""Specs: what they accept, and that every fault comes back as text that helps."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.errors import SpecError
from partitioner.spec import spec as spec_module
from partitioner.spec.spec import DeviceSpec, Spec, json_schema, load_spec

SPECS = Path(__file__).parent.parent / "specs"
FULL = """
devices:
  - {name: gpu0, device: cuda, lanes: 4, memory: 16GiB, speed: 2, flops: 10TFLOP/s, bandwidth: 900GB/s,
     overhead: 3us, handoff: 10us}
  - {device: cpu}
links: [{source: gpu0, target: cpu, bandwidth: 64GB/s, latency: 10us}]
policy: single
backend: reference
pins: [{match: "encoder.*", device: "cuda:0"}]
colocate: [["a.*", "b"]]
grain: 1ms
schema_version: 1
"""


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def fault(source: object, **overrides: object) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(source, **overrides)  # type: ignore[arg-type]
    return str(caught.value)


# What is read ---------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    spec = load_spec()
    assert spec == Spec() == load_spec({})
    assert (spec.devices, spec.policy, spec.backend, spec.grain, spec.schema_version) == (
        (),
        "by_level",
        "auto",
        None,
        1,
    )


def test_every_field_is_read_with_its_unit(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "full.yaml", FULL))
    gpu, cpu = spec.devices
    assert (gpu.name, gpu.device, gpu.lanes, gpu.memory, gpu.speed) == ("gpu0", "cuda:0", 4, 2**34, 2.0)
    assert (gpu.flops, gpu.bandwidth, gpu.overhead, gpu.handoff) == (1e13, 9e11, 3e-6, 1e-5)
    assert (cpu.name, cpu.lanes, cpu.memory, cpu.flops) == ("cpu", 1, None, None)
    assert (spec.links[0].bandwidth, spec.links[0].latency) == (64e9, 1e-5)
    assert (spec.pins[0].match, spec.colocate, spec.grain) == ("encoder.*", (("a.*", "b"),), 1e-3)


def test_the_three_formats_agree(tmp_path: Path) -> None:
    yaml_text = "policy: single\ndevices: [{device: cpu, lanes: 2}]"
    toml_text = 'policy = "single"\n[[devices]]\ndevice = "cpu"\nlanes = 2'
    json_text = '{"policy": "single", "devices": [{"device": "cpu", "lanes": 2}]}'
    texts = {"a.yaml": yaml_text, "b.YML": yaml_text, "c.toml": toml_text, "d.json": json_text}
    specs = [load_spec(str(write(tmp_path, name, text))) for name, text in texts.items()]
    assert all(spec == specs[0] for spec in specs)
    assert specs[0].devices == (DeviceSpec(device="cpu", lanes=2),)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert load_spec(write(tmp_path, "bom.json", b"\xef\xbb\xbf{}")) == Spec()


def test_overrides_replace_fields_and_none_does_not() -> None:
    spec = load_spec({"policy": "single", "backend": "threads"}, policy=None, backend="streams", grain="1ms")
    assert (spec.policy, spec.backend, spec.grain) == ("single", "streams", 1e-3)
    assert load_spec(spec, policy="by_level").policy == "by_level"
    assert load_spec(spec) == spec


def test_a_dumped_spec_loads_again(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "full.yaml", FULL))
    assert load_spec(spec.model_dump()) == spec
    assert load_spec(write(tmp_path, "again.json", spec.model_dump_json())) == spec


def test_a_spec_is_frozen_and_hashable() -> None:
    spec = load_spec({"devices": [{"device": "cpu"}], "colocate": [["a"]]})
    assert isinstance(hash(spec), int)
    with pytest.raises(pydantic.ValidationError):
        spec.policy = "single"  # type: ignore[misc]


@pytest.mark.parametrize("model", [Spec, *(spec_module._MODELS.values())])
def test_every_field_says_what_it_is(model: type[pydantic.BaseModel]) -> None:
    assert all(field.description for field in model.model_fields.values())


# Faults ---------------------------------------------------------------------------------------------------------------


def test_all_faults_come_at_once_with_their_paths() -> None:
    """Names are compared even where fields are wrong: links[0] is told beside devices[0].memory."""
    document = {
        "devices": [{"device": "cuda:0", "memory": "16GiBB", "lane": 2}, {"device": "cpu", "lanes": 0}],
        "links": [{"source": "cuda:0", "target": "cpi"}],
        "polcy": "single",
    }
    starts = [
        "the spec: 5 faults",
        '  devices[0].memory: "16GiBB" is not a size; write bytes or a number with B, kB, MB, GB',
        '  devices[0].lane: is no key here; did you mean "lanes"?',
        "  devices[1].lanes: 0 should be greater than or equal to 1 (lanes: streams or worker threads that run at once",
        '  polcy: is no key here; did you mean "policy"?',
        '  links[0].target: "cpi" is no device of this spec; did you mean "cpu"?',
    ]
    lines = fault(document).splitlines()
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"devices": [{}]}, "devices[0].device: is missing (device: the torch device"),
        ({"devices": ["cpu"]}, 'devices[0]: "cpu" should be a mapping'),
        ({"devices": "cpu"}, 'devices: "cpu" should be a list'),
        ({"devices": [{"device": "cuda:x"}]}, 'devices[0].device: "cuda:x" is not a device; write cpu'),
        ({"devices": [{"device": "meta"}]}, 'devices[0].device: "meta" is not a device'),
        ({"devices": [{"device": "cpu", "name": None}]}, "devices[0].name: null should be text"),
        ({"devices": [{"device": "cpu", "name": "a b"}]}, 'devices[0].name: "a b" has letters that'),
        ({"devices": [{"device": "cpu", "lanes": True}]}, "devices[0].lanes: true should be a whole number"),
        ({"devices": [{"device": "cpu", "lanes": "2"}]}, 'devices[0].lanes: "2" should be a whole number'),
        ({"devices": [{"device": "cpu", "speed": 0}]}, "devices[0].speed: 0 should be"),
        ({"devices": [{"device": "cpu", "speed": float("nan")}]}, "devices[0].speed: nan should be"),
        ({"devices": [{"device": "cpu", "memory": 0}]}, "devices[0].memory: 0 should be"),
        ({"devices": [{"device": "cpu", "flops": 10**5000}]}, "devices[0].flops: an integer of"),
        ({"devices": [{"device": "cpu", "overhead": "-3us"}]}, 'devices[0].overhead: "-3us" is not a duration'),
        ({"policy": ""}, 'policy: "" should not be empty'),
        ({"policy": b"single"}, "policy: a bytes should be text"),
        ({"colocate": [["a"], []]}, "colocate[1]: a list of 0 should not be empty"),
        ({"colocate": [["a", 3]]}, "colocate[0][1]: 3 should be text"),
        ({"pins": [{"match": "a"}]}, "pins[0].device: is missing"),
        ({"schema_version": 2}, "schema_version: 2 should be"),
        ({1: 2}, "[1]: 1 is no key; keys are text"),
        ({"a\nb": 2}, '["a\\nb"]: is no key here; there are schema_version, devices'),
    ],
)
def test_one_fault_in_one_field(document: object, line: str) -> None:
    title, *lines = fault(document).splitlines()
    assert title == "the spec: 1 fault"
    assert len(lines) == 1
    assert lines[0].startswith(f"  {line}")


CUDA, OTHER, CPU = {"device": "cuda:0"}, {"device": "cuda:1"}, {"device": "cpu"}


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"devices": [CUDA, {"device": "cuda"}]}, 'devices[1].device: "cuda:0" is devices[0] again'),
        ({"devices": [CPU, {"device": "cpu:1", "name": "b"}]}, 'devices[1].device: "cpu" is devices[0] again'),
        (
            {"devices": [{**CUDA, "name": "a"}, {**OTHER, "name": "a"}]},
            'devices[1].name: "a" is the name of devices[0]; choose another',
        ),
        ({"devices": [{**CUDA, "name": "cuda:1"}]}, 'devices[0].name: "cuda:1" is another torch device than its own'),
        (
            {"devices": [CUDA], "pins": [{"match": "a", "device": "gpu"}]},
            'pins[0].device: "gpu" is no device of this spec',
        ),
        ({"devices": [CUDA], "links": [{"source": "x", "target": "cuda"}]}, 'links[0].source: "x" is no device'),
        (
            {"devices": [CUDA], "links": [{"source": "cuda:0", "target": "cuda"}]},
            'links[0].target: "cuda" is the link\'s',
        ),
        ({"links": [{"source": "a", "target": "b"}] * 2}, 'links[1]: "a -> b" is linked twice'),
    ],
)
def test_one_fault_between_fields(document: object, line: str) -> None:
    title, *lines = fault(document).splitlines()
    assert title == "the spec: 1 fault"
    assert len(lines) == 1
    assert lines[0].startswith(f"  {line}")


def test_a_link_and_a_pin_may_use_the_torch_device() -> None:
    devices = [{**CUDA, "name": "gpu0"}, CPU]
    load_spec({"devices": devices, "pins": [{"match": "a", "device": "cuda"}, {"match": "b", "device": "gpu0"}]})
    load_spec({"devices": devices, "links": [{"source": "cuda:0", "target": "cpu:1"}]})


def test_a_torch_device_is_as_good_as_its_name() -> None:
    """In ``devices`` it was taken; of a pin, a link and a cap it was said that it should be text."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 1)
    asked = {"pins": [{"match": "a", "device": cuda}], "links": [{"source": cpu, "target": cuda}], "max_memory": {cuda: "1GiB"}}
    named = {"pins": [{"match": "a", "device": "cuda:1"}], "links": [{"source": "cpu", "target": "cuda:1"}]}
    assert load_spec(asked) == load_spec({**named, "max_memory": {"cuda:1": "1GiB"}})


def test_a_faulty_device_makes_no_name_unknown() -> None:
    """The pin could mean the device whose entry is wrong: one cause, one fault."""
    document = {"devices": [CPU, {"device": "cuda:x"}], "pins": [{"match": "a", "device": "gpu"}]}
    assert fault(document).startswith("the spec: 1 fault\n  devices[1].device")


def test_the_same_faults_where_python_builds_the_spec() -> None:
    with pytest.raises(pydantic.ValidationError, match=r"links.0.target"):
        Spec.model_validate({"devices": [CUDA], "links": [{"source": "cuda", "target": "cpu"}]})


def test_very_many_faults_are_counted() -> None:
    lines = fault({f"key{index}": 1 for index in range(200)}).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("the spec: 200 faults", "  ... and 150 more", 52)


def test_a_wrong_override_is_a_fault_of_its_field() -> None:
    assert fault({}, polcy="single") == 'the spec: 1 fault\n  polcy: is no key here; did you mean "policy"?'


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.yaml", "devices: [", "not valid YAML in UTF-8; ParserError"),
        ("a.yaml", "- 1", "the document is a list of 1; a spec is a mapping"),
        ("a.yaml", "", "the document is null; a spec is a mapping, {} for all defaults"),
        ("a.yaml", b"\xff\xfe", "UnicodeDecodeError"),
        ("a.yaml", "\x00", "not valid YAML"),
        ("a.yaml", "a: !!bool x", "KeyError"),  # PyYAML's own errors are not all YAMLErrors
        ("a.yaml", "a: !!timestamp x", "AttributeError"),
        ("a.yaml", "a: !!int ''", "IndexError"),
        ("a.yaml", "a: 2024-99-99", "ValueError"),
        ("a.yaml", "a: " + "9" * 5000, "ValueError"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a.yaml", "policy: single\npolicy: by_level", 'the key "policy" is written 2 times'),
        ("a.yaml", "--- {}\n--- {}", "expected a single document"),
        ("a.yaml", "a:\n\t- b", "found character '\\t' that cannot start any token in"),
        ("a.yaml", "? [a]\n: 1", "found unhashable key in"),
        ("a.yaml", "[" * 5000, "nested too deeply"),
        ("a.yaml", "a: &a [*a]", "aliases stand for more than"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", '{"policy": "a", "policy": "b"}', 'the key "policy" is written 2 times'),
        ("a.json", "[" * 200_000, "nested too deeply"),
        ("a.json", "null", "the document is null"),
        ("a.toml", "a =", "not valid TOML"),
        ("a.toml", "a = " + "[" * 5000, "nested too deeply"),
        ("a.txt", "", "ends in one of .yaml, .yml, .json, .toml"),
        ("a.yaml", "x" * (2**20 + 1), "larger than 1 MiB"),
    ],
)
def test_unreadable_documents(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    path = write(tmp_path, name, content)
    message = fault(path)
    assert message.startswith('"') and "\n" not in message
    assert says in message


@pytest.mark.parametrize("mark", ["{lots: *e}", "<<: *e"])
def test_aliases_of_aliases_are_refused_before_they_unfold(tmp_path: Path, mark: str) -> None:
    """Ten lines that stand for 10**9 values, by lists or by merge keys."""
    lists = [f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]" for below, name in zip("abcdefgh", "bcdefghi", strict=True)]
    maps = [
        f"{name}: &{name} {{<<: [{', '.join([f'*{below}'] * 10)}]}}" for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    text = "\n".join(["a: &a {x: 1}", *(maps if "<<" in mark else lists)])
    assert "aliases stand for more than" in fault(write(tmp_path, "bomb.yaml", text))


def test_a_document_may_be_as_large_as_the_bound(tmp_path: Path) -> None:
    assert load_spec(write(tmp_path, "spaces.json", "{}" + " " * (2**20 - 2))) == Spec()


def test_anchors_and_merge_keys_are_welcome(tmp_path: Path) -> None:
    text = "devices:\n- &gpu {device: cuda:0, lanes: 2}\n- {<<: *gpu, device: cuda:1}"
    assert [device.lanes for device in load_spec(write(tmp_path, "a.yaml", text)).devices] == [2, 2]


@pytest.mark.parametrize("path", ["", "no_such.yaml", "a\0.yaml", "a\ud800.yaml", "x" * 5000 + ".yaml"])
def test_paths_that_name_no_file(path: str) -> None:
    assert "path of a" in fault(path)


def test_a_directory_and_a_device_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    assert "it is a directory or a device" in fault(tmp_path / "folder.yaml")
    assert "it is a directory or a device" in fault(tmp_path / "zero.yaml")


@pytest.mark.parametrize("source", [3, ["cpu"], b"a.yaml", object()])
def test_other_sources(source: object) -> None:
    assert "give a Spec, a mapping, the path of a file, or None" in fault(source)


# Anything at all ------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
WORDS = st.sampled_from(["cpu", "cpu:1", "cuda:0", "cuda", "1GiB", "1us", "a.*", "gpu0", ""])
KEYS = st.sampled_from([*Spec.model_fields, *(key for model in spec_module._MODELS.values() for key in model.model_fields)])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner),
    max_leaves=12,
)
ENTRY = st.dictionaries(KEYS, WORDS | SCALARS, max_size=4)
DOCUMENTS = st.dictionaries(KEYS | SCALARS, st.lists(ENTRY, max_size=3) | VALUES, max_size=5)


def loads_or_says_why(source: object) -> None:
    try:
        assert isinstance(load_spec(source), Spec)  # type: ignore[arg-type]
    except SpecError as error:
        assert str(error)


@given(DOCUMENTS)
def test_any_document_loads_or_says_why(document: object) -> None:
    loads_or_says_why(document)


@given(VALUES)
def test_any_object_loads_or_says_why(source: object) -> None:
    loads_or_says_why(source)


@given(st.binary(max_size=200) | st.text(alphabet="{}[]:-&*<!?|>%@`'\"#, \nabc01", max_size=60).map(str.encode))
@settings(deadline=None)
def test_any_bytes_load_or_say_why(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("yaml", "json", "toml"):
            loads_or_says_why(write(Path(folder), f"a.{ending}", content))


# The files in specs/ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_specs_load_and_meet_the_schema(path: Path) -> None:
    spec = load_spec(path)
    assert spec.devices or spec.distributed
    assert path.read_text().startswith("# yaml-language-server: $schema=spec.schema.json\n")
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads(json_schema()))


def test_the_schema_file_is_up_to_date() -> None:
    how = "from partitioner.spec.spec import json_schema; open('specs/spec.schema.json', 'w').write(json_schema())"
    assert (SPECS / "spec.schema.json").read_text() == json_schema(), f'regenerate it: python -c "{how}"'


def test_the_schema_accepts_quantities_and_refuses_slips() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(json_schema()))
    validator.check_schema(validator.schema)
    assert validator.is_valid(yaml.safe_load(FULL))
    assert validator.is_valid({"devices": [{"device": "cpu", "memory": 2**30, "handoff": 1e-5, "flops": None}]})
    for slip in ({"memory": "16GiBB"}, {"memory": -1}, {"handoff": "10 seconds"}, {"lane": 2}, {"lanes": 0}):
        assert not validator.is_valid({"devices": [{"device": "cpu", **slip}]})
