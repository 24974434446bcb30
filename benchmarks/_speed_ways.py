"""The ways to run a model that `speed.py` compares: eager, torch.compile, forks by hand, ONNX Runtime, and what we emit.

A way is made from a model and one call of it. What cannot be made says why (`Unavailable`), and its column stays empty.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from _branched import Branched
from _common import Way, same_weights
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner import Parallel, SpecError, partition

Inputs = tuple[Tensor, ...]
Call = Callable[[], object]

WARM = 3
"""Calls before anything is timed: torch.jit optimises in its second one."""

SETTLED = 0.01
"""Seconds after which threads that the way before has used no longer spin; libgomp's do so for 7.6 ms."""

TOLERANCE = 2e-3
"""Part of the largest value by which a result may be off: other kernels sum in another order."""

OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours-tuned": {"tune": True},
    "ours-torchscript": {"compile_tasks": "torchscript"},
    "ours-batched": {"compile_tasks": "batched"},
    "ours-frozen": {"compile_tasks": "frozen"},
    "ours-inductor": {"compile_tasks": "inductor"},
    "ours-inductor-tuned": {"compile_tasks": "inductor", "tune": True},
}
"""What `partition` is given, by column."""

OTHERS = ("torch.compile", "max-autotune", "jit.fork", "ORT", "ORT-parallel")


class Unavailable(Exception):
    """Why there is no such way for a model."""


class Different(Exception):
    """A way computes something else than eager."""


@dataclass(frozen=True)
class Contender:
    """How to make a way, and the threads that an op may use while it is made and called."""

    make: Callable[[], Call]
    threads: int


class Settled(Way):
    """A way whose turn begins when threads of the one before have gone to sleep."""

    def sample(self, repeat: int) -> float:
        time.sleep(SETTLED)
        return super().sample(repeat)


def eager_names(threads: int) -> dict[str, int]:
    """The columns of eager, and their threads: one, all, and powers of two between them.

    >>> eager_names(6)
    {'eager-1': 1, 'eager-2': 2, 'eager-4': 4, 'eager-6': 6}
    """
    counts = [1, *(2**power for power in range(1, 10) if 2**power < threads), threads]
    return {f"eager-{count}": count for count in dict.fromkeys(counts)}


def contenders(model: nn.Module, inputs: Inputs, lanes: int, threads: int) -> dict[str, Contender]:
    """Every way, by the name of its column. A lane has its share of the threads; what has no lanes has all."""
    exported = cache(lambda: onnx_of(model, inputs))
    share = max(1, threads // lanes)
    found = {name: Contender(lambda: lambda: model(*inputs), count) for name, count in eager_names(threads).items()}
    found["torch.compile"] = Contender(lambda: compiled(model, inputs), threads)
    found["max-autotune"] = Contender(lambda: compiled(model, inputs, "max-autotune"), threads)
    found["jit.fork"] = Contender(lambda: forked(model, inputs), share)
    found["ORT"] = Contender(lambda: session(exported(), inputs, 1, threads), threads)
    found["ORT-parallel"] = Contender(lambda: session(exported(), inputs, lanes, share), threads)
    return found | {name: Contender(partial(ours, model, inputs, lanes, options), threads) for name, options in OURS.items()}


def ready(contender: Contender, expected: object) -> Way:
    """A way that was made, called a few times, and held against eager.

    Raises:
        Unavailable, Different: it cannot be made; it computes something else.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(contender.threads)
    try:
        call = contender.make()
        for _ in range(WARM):
            result = call()
    finally:
        torch.set_num_threads(before)
    agree(expected, result)
    return Settled(call, contender.threads)


def agree(expected: object, result: object) -> None:
    """Raise if results differ by more than rounding."""
    wanted, given = ([torch.as_tensor(each) for each in tree_leaves(values)] for values in (expected, result))
    if [each.shape for each in wanted] != [each.shape for each in given]:
        raise Different(
            f"shapes {[tuple(each.shape) for each in given]} in the place of {[tuple(each.shape) for each in wanted]}"
        )
    for number, (one, other) in enumerate(zip(wanted, given, strict=True)):
        off = float((one - other).abs().max() / one.abs().max().clamp(min=1e-12))
        if not off <= TOLERANCE:
            raise Different(f"result {number} is off by {off:.1e} of its largest value, and {TOLERANCE} is rounding")


# The ways -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    """A call of a partitioned module, which can be asked for its plan."""

    parallel: Parallel
    inputs: Inputs

    def __call__(self) -> object:
        return self.parallel(*self.inputs)


def ours(model: nn.Module, inputs: Inputs, lanes: int, options: dict[str, Any]) -> Ours:
    """What `partition` gives on CPU lanes. An option that this version does not know is no way."""
    devices = [f"cpu:{number}" for number in range(lanes)]
    try:
        parallel = partition(same_weights(model), devices, example_inputs=inputs, **options)
    except (SpecError, TypeError) as error:
        raise Unavailable(first_line(error)) from error
    return Ours(parallel, inputs)


def compiled(model: nn.Module, inputs: Inputs, mode: str = "default") -> Call:
    """A mode of torch.compile, for the whole model."""
    copied = same_weights(model)
    with whatever_fails():
        made = torch.compile(copied, mode=mode)
        made(*inputs)
    return lambda: made(*inputs)


def forked(model: nn.Module, inputs: Inputs) -> Call:
    """Branches forked by hand with ``torch.jit.fork``, and all of it traced."""
    if not any(isinstance(module, Branched) for module in model.modules()):
        raise Unavailable("the model is not written as branches")
    copied = same_weights(model)
    for module in copied.modules():
        if isinstance(module, Branched):
            module.by_hand = True
    with whatever_fails():
        traced = torch.jit.trace(copied, inputs, check_trace=False)
    return lambda: traced(*inputs)


def onnx_of(model: nn.Module, inputs: Inputs) -> bytes:
    """A model in ONNX's format."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not installed; pip install onnxruntime onnx onnxscript")
    with whatever_fails(), torch.inference_mode(False), torch.no_grad(), redirect_stdout(io.StringIO()):
        plain = copy.deepcopy(model)
        given = tuple(each.clone() for each in inputs)
        program = torch.onnx.export(plain, given, dynamo=True, verbose=False)
        return bytes(program.model_proto.SerializeToString())


def session(onnx: bytes, inputs: Inputs, lanes: int, threads: int) -> Call:
    """ONNX Runtime, one node after the other, or as many at once as there are lanes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if lanes > 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = lanes
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")  # it would keep the nodes' own threads waiting
    options.add_session_config_entry("session.force_spinning_stop", "1")  # after a call the cores are the next way's
    with whatever_fails():
        made = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in made.get_inputs()]
        given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        made.run(None, given)
    return lambda: made.run(None, given)


@contextmanager
def whatever_fails() -> Iterator[None]:
    """A block of another library's, which may fail on a model as it likes: then its way is not there. It warns nobody."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise Unavailable(first_line(error)) from error
    finally:
        logging.disable(level)


def first_line(error: BaseException) -> str:
    """A kind of error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:150] if lines else ''}"
