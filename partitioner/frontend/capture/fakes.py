"""Fake tensors that lie where they are told to, for models whose state lies on several devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dynamo import convert_frame, utils
from torch._dynamo.exc import Unsupported
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only

from partitioner.frontend.capture.amended import amended, amends
from partitioner.frontend.capture.here import HERE


@contextmanager
def fakes_at(device: torch.device) -> Iterator[None]:
    """Every fake that this thread makes of a real tensor says that it lies on ``device``. Others see nothing of that.

    A model whose state lies on several devices cannot be traced as it lies. Guards are made of the real tensors.
    """
    with convert_frame.compile_lock:
        plain, thread = FakeTensorConverter.from_real_tensor, threading.get_ident()

        def from_real_tensor(self: FakeTensorConverter, *args: Any, **kwargs: Any) -> Any:
            fake = plain(self, *args, **kwargs)
            if threading.get_ident() == thread and fake.fake_device.type != "meta":
                fake.fake_device = device
            return fake

        with amended(FakeTensorConverter, from_real_tensor=from_real_tensor):
            yield


def forget(module: torch.fx.GraphModule) -> None:
    """Drop what fakes remember of real tensors: `torch.utils.swap_tensors` refuses those that are referred to weakly."""
    for node in module.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("example_value")
        if isinstance(fake, FakeTensor):
            fake.fake_mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()
            return


@amends(utils, "run_node")
def _run_node(plain: Callable[..., Any], tracer: Any, node: torch.fx.Node, *rest: Any, **named: Any) -> Any:
    """What `torch.tensor` makes on the meta device is real, whatever mode of fakes is on; what functorch wraps is not.

    What a model whose weights have no values makes without a device has none either, and lies with them.
    """
    value, mode = plain(tracer, node, *rest, **named), active_fake_mode()
    if mode is None or not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
        return value
    if HERE.apart and is_traceable_wrapper_subclass(value):
        raise Unsupported(f"it makes a {type(value).__name__}, which is several tensors in one")
    value = value if isinstance(value, FakeTensor) else mode.from_tensor(value)
    if HERE.empty and not node.all_input_nodes and value.fake_device.type == "cpu":
        value.fake_device = torch.device("meta")
    return value


class _OnFakes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives each op fakes for its real tensors. A mode of fakes alone would write a real tensor that is given a number."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)


@contextmanager
def on_fakes() -> Iterator[None]:
    """Real tensors give fakes meanwhile, and torch's loggers keep silent about what fails."""
    before, HERE.tracing = HERE.tracing, True
    try:
        with FakeTensorMode() as mode, _OnFakes(mode):
            yield
    finally:
        HERE.tracing = before
