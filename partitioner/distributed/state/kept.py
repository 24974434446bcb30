"""What a checkpoint holds, by name: the tensors of a model and of its optimizer, each under the model's own key.

    model.blocks.0.weight                   the parameter, or buffer; of a tied one, under each of its keys
    optim.state.blocks.0.weight.exp_avg     what the optimizer knows of it; of a tied one, under the first of its keys
    random.3.cpu                            the state of rank 3's random numbers
    about.json                              steps, extra, and what is no tensor: learning rates, betas

The names are those that torch gives, so that torch reads such a checkpoint, and one that torch wrote can be read.
No name says which rank held a thing: any other layout finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from partitioner.distributed.run.stale import stale
from partitioner.distributed.state.held import Ranked
from partitioner.distributed.tensor.portion import Portion
from partitioner.distributed.tensor.shards import Shards
from partitioner.errors import CheckpointError

MODEL, STATE, RANDOM = "model.", "optim.state.", "random."


@dataclass(eq=False)
class Kept:
    """The part of a model and of its optimizer that this rank holds, under the names of a checkpoint.

    Args:
        model: a plain module, or a rank's part.
        optimizer: of parameters of that model.
        saving: whether it is to be written.
        copied: whether what is given are copies, which training does not change; in host memory, where they are not sharded.

    Attributes:
        keys: of each tensor here, by its identity.
        parts: by key, of what ranks of a tensor axis have a part each: its key in the model, and who knows which part.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    copied: bool = False
    saving: bool = False
    keys: Mapping[int, tuple[str, ...]] = field(init=False)
    parts: Mapping[str, tuple[str, Shards]] = field(init=False)

    def __post_init__(self) -> None:
        if self.saving and (key := stale(self.model)):
            raise CheckpointError(
                f"this is the whole {type(self.model).__name__}, of which ranks train parts, and {key} is as it was: save the "
                "part that parallelize gave"
            )
        keys: dict[int, tuple[str, ...]] = {}
        for key, tensor in self._own():
            keys[id(tensor)] = (*keys.get(id(tensor), ()), key)
        self.keys = keys
        self.parts = {
            f"{name}.{key}" if name else key: (key, ranked.shards)
            for name, ranked in _ranked(self.model)
            if ranked.shards is not None
            for key in ranked.shards.forms
        }
        foreign = sum(id(parameter) not in keys for _, parameter in self._trained())
        if foreign:
            raise CheckpointError(
                f"the optimizer has {foreign} parameters that the model has not; make it of the parameters of what is saved, "
                "after parallelize"
            )

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        for key, value in self.model.state_dict(keep_vars=True).items():
            if not isinstance(value, torch.Tensor):
                raise CheckpointError(f"{key} is a {type(value).__name__}, and a checkpoint keeps tensors: pass it as extra")
            yield key, value

    def _trained(self) -> Iterator[tuple[dict[str, Any], nn.Parameter]]:
        """The optimizer's parameters, but for what a rank has that holds none."""
        idle = {id(each) for _, ranked in _ranked(self.model) for each in ranked.idle}
        for group in self.optimizer.param_groups if self.optimizer else ():
            for parameter in group["params"]:
                if id(parameter) not in idle:
                    yield group, parameter

    def _portion(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as part of a whole, where ranks of a tensor axis share that."""
        own, shards = self.parts.get(key, (key, None))
        return self._copy(tensor) if shards is None else shards.portion(own, self._copy(tensor))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.copied:
            return tensor
        return tensor.clone() if hasattr(tensor, "to_local") else tensor.to("cpu", copy=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The model's, by name."""
        return {MODEL + key: self._portion(key, tensor.detach()) for key, tensor in self._own()}

    def replicated(self) -> dict[str, torch.Tensor]:
        """The parameters that are not sharded, by name: wherever else they are held, they should be equal."""
        return {
            MODEL + key: tensor.detach()
            for key, tensor in self._own()
            if isinstance(tensor, nn.Parameter) and not hasattr(tensor, "to_local") and key not in self.parts
        }

    def states(self) -> dict[str, torch.Tensor]:
        """The optimizer's tensors, by name."""
        return {
            f"{STATE}{(key := self.keys[id(parameter)][0])}.{name}": (
                self._portion(key, value) if value.shape == parameter.shape else self._copy(value)
            )
            for _, parameter in self._trained()
            for name, value in self._state(parameter).items()
            if isinstance(value, torch.Tensor)
        }

    def said(self) -> dict[str, Any]:
        """What the optimizer knows that is no tensor; `merged` makes one of what all ranks say.

        Its kind; of each parameter, by key, ``{"group": ..., "state": ...}``; and the options of each group, with whether
        this rank has any of its parameters.
        """
        if self.optimizer is None:
            return {"kind": "", "optimizer": {}, "groups": []}
        return {
            "kind": type(self.optimizer).__name__,
            "optimizer": {
                self.keys[id(parameter)][0]: {
                    "group": _options(group),
                    "state": {
                        name: value for name, value in self._state(parameter).items() if not isinstance(value, torch.Tensor)
                    },
                }
                for group, parameter in self._trained()
            },
            "groups": [
                (any(id(each) in self.keys for each in group["params"]), _options(group))
                for group in self.optimizer.param_groups
            ],
        }

    def _state(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        assert self.optimizer is not None
        state: Mapping[str, Any] = self.optimizer.state.get(parameter, {})
        return state

    def faults(self, found: Metadata, about: Mapping[str, Any]) -> list[str]:
        """What this rank holds and a checkpoint does not have, or has in another shape."""
        lines, options = [], about.get("optimizer")
        for name, tensor in self.tensors().items():
            meta, key = found.state_dict_metadata.get(name), name.removeprefix(MODEL)
            if not isinstance(meta, TensorStorageMetadata):
                lines.append(f"{key} is missing")
            elif meta.size != tensor.shape:
                lines.append(f"{key} has shape {tuple(meta.size)}, and the model's has {tuple(tensor.shape)}")
            if tensor.is_meta:
                lines.append(f"{key} of the model has no storage, being on meta: call model.to_empty(device='cpu') first")
        if not any(self._trained()):
            return lines
        if options == {} or (options is None and not any(name.startswith(STATE) for name in found.state_dict_metadata)):
            return [*lines, "no optimizer was saved"]
        lines += self._other_kind(about)
        for _, parameter in self._trained():
            if options is not None and not any(key in options for key in self.keys[id(parameter)]):
                lines.append(f"{self.keys[id(parameter)][0]} is missing in the optimizer that was saved")
        return lines

    def _other_kind(self, about: Mapping[str, Any]) -> list[str]:
        """An optimizer whose states mean something else: it has other options, and so another class than that of a name."""
        saved, now = about.get("kind"), type(self.optimizer).__name__
        known = {name for options in about.get("groups", ()) for name in options}
        wanted = set(self.optimizer.defaults) if self.optimizer is not None else set()
        if not saved or saved == now or wanted <= known:
            return []
        return [f"the optimizer that was saved is {saved}, and this one is {now}; without it: load(folder, model)"]

    def empty_states(self, found: Metadata) -> dict[str, torch.Tensor]:
        """Room for what a checkpoint knows of this rank's parameters, by the name that it has there.

        Raises:
            CheckpointError: a parameter is sharded, and its state has another shape.
        """
        here = {key: parameter for _, parameter in self._trained() for key in self.keys[id(parameter)]}
        room = {}
        for name, meta in found.state_dict_metadata.items():
            key, _, word = name.removeprefix(STATE).rpartition(".")
            if not name.startswith(STATE) or key not in here or not isinstance(meta, TensorStorageMetadata):
                continue
            parameter, dtype = here[key], meta.properties.dtype
            if meta.size == self._portion(key, parameter.detach()).shape:
                room[name] = self._portion(key, torch.zeros_like(parameter, dtype=dtype, requires_grad=False))
            elif (hasattr(parameter, "to_local") or key in self.parts) and meta.size:
                raise CheckpointError(
                    f"{word} of {key} has shape {tuple(meta.size)}, and the parameter {tuple(parameter.shape)}: it cannot be "
                    "sharded alike; take wrap: ddp"
                )
            else:
                room[name] = torch.zeros(meta.size, dtype=dtype, device=parameter.device if meta.size else "cpu")
        return room

    def give(self, states: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        """Hand the optimizer what was loaded.

        Raises:
            CheckpointError: parameters that are in one group now were saved with different options.
        """
        if self.optimizer is None:
            return
        own, options = self.optimizer.state_dict(), about.get("optimizer")
        by_key: dict[str, dict[str, Any]] = {}
        for name, tensor in states.items():
            key, _, word = name.removeprefix(STATE).rpartition(".")
            by_key.setdefault(key, {})[word] = tensor.part if isinstance(tensor, Portion) else tensor
        state = {}
        held = (id(each) for group in self.optimizer.param_groups for each in group["params"])
        number = dict(zip(held, _numbers(own["param_groups"]), strict=True))
        for _, parameter in self._trained():
            known = next((key for key in self.keys[id(parameter)] if key in by_key or key in (options or {})), "")
            values = dict(by_key.get(known, {})) | ((options or {}).get(known, {}).get("state", {}))
            if values:
                state[number[id(parameter)]] = values
        groups = own["param_groups"] if options is None else self._groups(own["param_groups"], options, about.get("groups", ()))
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _groups(
        self, own: list[dict[str, Any]], options: Mapping[str, Any], saved: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The groups with the options that their parameters had; of one without parameters here, those at its place."""
        groups = []
        for number, (group, now) in enumerate(zip(own, self.optimizer.param_groups if self.optimizer else (), strict=True)):
            keys = [
                next(key for key in self.keys[id(each)] if key in options) for each in now["params"] if id(each) in self.keys
            ]
            for key in keys:
                for name, value in options[key]["group"].items():
                    if value != options[keys[0]]["group"].get(name):
                        raise CheckpointError(
                            f"{keys[0]} and {key} are in one group of the optimizer, and were saved with different {name}: "
                            f"{options[keys[0]]['group'].get(name)} and {value}. Make the groups that there were"
                        )
            there = saved[number] if len(saved) == len(own) else {}
            found = options[keys[0]]["group"] if keys else there
            groups.append(group | {name: _like(group.get(name), value) for name, value in found.items()})
        return groups


def merged(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the ranks say of their parts of one optimizer, as one: a group's options are those of a rank that has some of it."""
    groups: list[tuple[bool, Any]] = []
    for each in said:
        for number, (holds, options) in enumerate(each["groups"]):
            if number == len(groups):
                groups.append((holds, options))
            elif holds and not groups[number][0]:
                groups[number] = holds, options
    return {
        "ranks": len(said),
        "kind": next((each["kind"] for each in said if each["kind"]), ""),
        "optimizer": {key: value for each in reversed(said) for key, value in each["optimizer"].items()},
        "groups": [options for _, options in groups],
    }


def _ranked(model: nn.Module) -> Iterator[tuple[str, Ranked]]:
    """The parts of ranks in a module, by name: itself, or what an average of weights has inside."""
    return ((name, each) for name, each in model.named_modules() if isinstance(each, Ranked))


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's, as JSON can say them; which parameters it has is another thing on each rank."""
    return {name: _plain(value) for name, value in group.items() if name not in ("params", "param_names")}


def _numbers(groups: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    for group in groups:
        yield from group["params"]


def _plain(value: Any) -> Any:
    """An option as JSON can say it."""
    return value.tolist() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, tuple) else value


def _like(now: Any, value: Any) -> Any:
    """An option out of JSON, as what the optimizer has there."""
    return now.new_tensor(value) if isinstance(now, torch.Tensor) else tuple(value) if isinstance(now, tuple) else value


def random_states(rank: int) -> dict[str, torch.Tensor]:
    """The states of this rank's random numbers, by name."""
    states = {f"{RANDOM}{rank}.cpu": torch.get_rng_state()}
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is not None:
        states[f"{RANDOM}{rank}.{kind.type}"] = torch.get_device_module(kind).get_rng_state()
    return states


def go_on(states: Mapping[str, torch.Tensor], seed: int, step: int, rank: int) -> None:
    """Let random numbers go on where they were; without their states, start them so that each resumption draws the same."""
    if not states:
        torch.manual_seed((seed + 1_000_003 * step + rank) % 2**63)
    for name, state in states.items():
        kind = name.rpartition(".")[2]
        if kind == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(kind).set_rng_state(state)
