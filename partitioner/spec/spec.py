"""What the user asks for: devices, links, pins, a policy and a backend, read from a document or from Python.

This is the border of the package: past it, a spec is well-formed. Every fault of a document is reported at once, each
with its path in the document::

    "lab.yaml": 2 faults
      devices[1].memory: "16GiBB" is not a size; write bytes or a number with B, kB, MB, ..., for example "16GiB"
      polcy: is no key here; did you mean "policy"?

What a spec does not say is filled in by :mod:`partitioner.spec.discover`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from partitioner.errors import SpecError
from partitioner.ir.optimizer import OPTIMIZERS, optimizer_named
from partitioner.ir.problem import Objective
from partitioner.ir.units import quote
from partitioner.spec.devices import parse_device
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.document import read_document
from partitioner.spec.faults import disagreements, faults_of
from partitioner.spec.hardware import HARDWARE, hardware_named
from partitioner.spec.quantities import Bandwidth, Count, Duration, Flag, Flops, Size

Text = Annotated[str, Field(strict=True, min_length=1)]
Place = Annotated[Text, BeforeValidator(lambda value: str(value) if isinstance(value, torch.device) else value)]
Torch = Annotated[str, BeforeValidator(parse_device), WithJsonSchema({"type": "string", "pattern": "^[a-z]"})]
Hardware = Annotated[
    str, BeforeValidator(lambda text: hardware_named(text).name), WithJsonSchema({"type": "string", "examples": list(HARDWARE)})
]
OptimizerName = Annotated[
    str, BeforeValidator(lambda text: optimizer_named(text).name), WithJsonSchema({"type": "string", "enum": list(OPTIMIZERS)})
]
# Programs are printed and parsed again, so a name is one word of them; ``<name>/<index>`` is a lane.
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$", max_length=64)]


class Sizes(dict[str, int]):
    """Sizes by name. Nobody changes one, so a spec that has one can be told from others by a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _policy(value: object) -> object:
    """A policy's name, its name with its options, or a function; whether it exists is asked when it is needed."""
    named = value.get("name") if isinstance(value, Mapping) else value
    if not callable(value) and (not isinstance(named, str) or not named):
        if named == "" or isinstance(value, Mapping):
            raise ValueError(f"{quote(named)} should not be empty" if named == "" else "has no name; write {name: exact, ...}")
        raise ValueError(f"{quote(value)} should be text; put it in quotes")
    return dict(value) if isinstance(value, Mapping) else value


Policy = Annotated[
    Any,
    BeforeValidator(_policy),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            ]
        }
    ),
]


class DeviceSpec(BaseModel, frozen=True, extra="forbid"):
    """One place with its own memory. What is left out is measured or assumed.

    >>> DeviceSpec(device="cuda", lanes=4).name
    'cuda:0'
    """

    device: Torch = Field(description="the torch device: cpu, cuda:0, xpu:1; it need not be present to plan for it")
    name: Name = Field(
        default_factory=lambda fields: fields["device"],
        description="what links, pins and reports call it: letters, digits and _.:- ; the torch device if left out",
    )
    lanes: Count = Field(default=1, le=1024, description="streams or worker threads that run at once, 1 to 1024")
    memory: Size | None = Field(
        default=None, description="bytes a plan may use, such as 16GiB; null for what is there (CPU: no cap)"
    )
    speed: float = Field(
        default=1.0,
        strict=True,
        ge=1e-6,
        le=1e6,
        allow_inf_nan=False,
        description="how fast it is next to its like: a factor on flops and bandwidth, 1 for average",
    )
    hardware: Hardware | None = Field(
        default=None,
        description="what it is, such as H100 or RTX-4090: flops, bandwidth, memory and links that are left out are those of "
        "its data sheet, less what large ops do not reach",
    )
    flops: Flops | None = Field(default=None, description="FLOP/s that one lane reaches, such as 10TFLOP/s")
    bandwidth: Bandwidth | None = Field(default=None, description="bytes/s that one lane reads and writes, such as 900GB/s")
    overhead: Duration | None = Field(default=None, description="seconds the host spends to issue one op, such as 3us")
    handoff: Duration | None = Field(
        default=None, description="seconds from an op on one lane to an op on another that waits for it, such as 10us"
    )

    @field_validator("hardware")
    @classmethod
    def _behind_its_device(cls, name: str | None, info: ValidationInfo) -> str | None:
        device = info.data.get("device")
        if name is not None and device is not None and (device == "cpu") != (HARDWARE[name].kind == "cpu"):
            raise SpecError(f"{quote(name)} is {'an accelerator' if device == 'cpu' else 'a CPU'}, and {device} is none")
        return name


class LinkSpec(BaseModel, frozen=True, extra="forbid"):
    """A one-way connection; write two for both ways.

    >>> LinkSpec(source="cuda:0", target="cpu").latency is None
    True
    """

    source: Place = Field(description="the device it leaves, by name or as a torch device")
    target: Place = Field(description="the device it enters, by name or as a torch device")
    bandwidth: Bandwidth | None = Field(default=None, description="bytes/s it carries, such as 64GB/s")
    latency: Duration | None = Field(default=None, description="seconds a copy takes before its bytes, such as 10us")


class PinSpec(BaseModel, frozen=True, extra="forbid"):
    """Ops that must run on one device.

    >>> PinSpec(match="encoder.*", device="cuda:0").match
    'encoder.*'
    """

    match: Text = Field(description="a glob over module paths and op names, such as encoder.*")
    device: Place = Field(description="the device, by name or as a torch device")


class Spec(BaseModel, frozen=True, extra="forbid"):
    """Everything a user may ask for. Read one with :func:`load_spec`, whose errors are made for people.

    Raises:
        pydantic.ValidationError: a field is wrong, a device is written twice, or a link or pin names no device.

    >>> Spec().policy
    'by_level'
    """

    schema_version: Count = Field(default=1, le=1, description="the version of this format; there is only 1")
    devices: tuple[DeviceSpec, ...] = Field(
        default=(), description="a list of the devices to plan for; empty for those that are found"
    )
    links: tuple[LinkSpec, ...] = Field(default=(), description="a list of the links that differ from the default")
    policy: Policy = Field(
        default="by_level",
        description="who decides where ops run: a name in POLICIES, or {name: exact, time_limit: 10s}; "
        "built in: by_level, list, fit, chain, exact, search, auto, single",
    )
    objective: Objective = Field(
        default="latency",
        description="what plans make small: latency, the time of one call; throughput, the largest load of a device; "
        "memory, the most bytes on one device at any time",
    )
    profile: Literal["auto", "all"] | None = Field(
        default=None,
        description="whether ops are timed before a plan is made: auto, those that make up most of the time; all; null, none",
    )
    backend: Text = Field(
        default="auto",
        description="what runs the program, a name in BACKENDS; built in: auto, reference, threads, streams",
    )
    backward: Literal["autograd", "lanes"] = Field(
        default="autograd",
        description="where the backward of CPU lanes runs: autograd, all on one thread; lanes, each task's on its own lane",
    )
    compile_tasks: Literal["torchscript", "batched", "frozen", "inductor", "max-autotune"] | None = Field(
        default=None,
        description="what compiles each task by itself: torchscript, the same kernels with no Python between them; batched, "
        "likewise, and equal ops of one level are one; frozen, likewise, on weights laid out once; inductor, fused kernels; "
        "max-autotune, likewise, chosen by timing them; null, nothing",
    )
    cuda_graphs: Flag = Field(
        default=False,
        description="whether programs on lanes of one CUDA device are captured as CUDA graphs and replayed, one graph for each "
        "set of sizes",
    )
    fullgraph: Flag | None = Field(
        default=None,
        description="whether one graph must be all of a call: true, a graph break is refused; false, Python may stand between "
        "graphs; null, true where state lies on several devices",
    )
    pins: tuple[PinSpec, ...] = Field(default=(), description="a list of the ops whose device is given")
    colocate: tuple[Annotated[tuple[Text, ...], Field(min_length=1)], ...] = Field(
        default=(), description="a list of lists of globs; the ops that match any glob of one list share a device"
    )
    grain: Duration | None = Field(
        default=None,
        description="seconds of the shortest task worth a launch of its own, such as 100us; null to derive it",
    )

    max_memory: Annotated[Mapping[Place, Size], AfterValidator(Sizes)] = Field(
        default_factory=Sizes,
        description="bytes a plan may use of a device, by its name or as a torch device, such as cuda:0: 20GiB",
    )
    training: Flag | None = Field(
        default=None,
        description="whether memory has room for a backward: gradients, what backward needs, the optimizer's state; "
        "null for whether gradients are enabled in the call",
    )
    optimizer: OptimizerName = Field(
        default="none", description="the optimizer whose state has room on the devices while training, such as adamw"
    )

    distributed: DistributedSpec | None = Field(
        default=None, description="how many ranks share the model, and how they work together; null for one process"
    )

    @property
    def policy_name(self) -> str | None:
        """The policy's name; ``None`` for a function."""
        named = self.policy.get("name") if isinstance(self.policy, Mapping) else self.policy
        return named if isinstance(named, str) else None

    @property
    def says_how(self) -> bool:
        """Whether somebody has said how plans run: with compiled tasks or without, and where backward does."""
        return bool({"compile_tasks", "backward"} & self.model_fields_set)

    @model_validator(mode="after")
    def _names_agree(self) -> Spec:
        faults = list(disagreements(dict(self)))
        if faults:
            raise ValidationError.from_exception_data("Spec", faults)
        return self


_MODELS: Mapping[str, type[BaseModel]] = {"devices": DeviceSpec, "links": LinkSpec, "pins": PinSpec}
"""The model of each entry of a list in the document, by the list's key."""


def json_schema() -> str:
    """The JSON Schema of :class:`Spec` as text, for editors: what ``specs/spec.schema.json`` holds.

    >>> '"devices"' in json_schema()
    True
    """
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Spec.model_json_schema()}
    for model in (schema, *schema["$defs"].values()):
        model["description"] = model["description"].split("\n")[0]  # an editor has no use for the doctests
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def load_spec(source: Spec | Mapping[str, object] | str | Path | None = None, **overrides: object) -> Spec:
    """The spec in ``source``, checked.

    Args:
        source: a spec; a mapping; the path of a ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file; ``None``: defaults.
        overrides: fields of :class:`Spec` that replace those of ``source``; ``None`` leaves a field as it is.

    Returns:
        A spec without a fault.

    Raises:
        SpecError: the only error. It lists every fault with its path in the document.

    >>> load_spec({"devices": [{"device": "cuda:0", "memory": "16GiB"}]}, policy="single").devices[0].memory
    17179869184
    """
    if isinstance(source, str | Path):
        where, document = quote(str(source)), read_document(source)
    elif isinstance(source, Spec):
        where, document = "the spec", {key: getattr(source, key) for key in source.model_fields_set}
    elif source is None or isinstance(source, Mapping):
        where, document = "the spec", dict(source or {})
    else:
        raise SpecError(f"{quote(source)} is not a spec; give a Spec, a mapping, the path of a file, or None")
    document |= {key: value for key, value in overrides.items() if value is not None}
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        raise faults_of(where, error, document, Spec, _MODELS) from None
