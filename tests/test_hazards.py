"""Each hazard of `tests/models` either comes out equal, spread over three lanes whether that pays or not, or is refused.

A refusal is right where no traced program could do what the model does, and it has to say so. Nothing may differ in silence.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch

from models import MODELS, make
from partitioner import DifferenceError, TraceError, partition
from partitioner.planner.policies import POLICIES
from partitioner.testing import assert_equal_runs
from scatter import scatter

REFUSED = {
    "CalledNTimes": "a Python loop whose length is a buffer's value",
    "DataDependent": "a branch on a tensor's value",
    "DictMemory": "tensors kept in a dict from call to call",
    "ListMemory": "tensors kept in a list from call to call",
    "PythonCounter": "a number in an attribute that changes the result",
    "ReplacedCounter": "a buffer that is replaced instead of written",
    "StateRead": "a buffer's value read as a Python number",
    "TensorHook": "a hook on a tensor inside of forward, which tracers drop",
}


@pytest.fixture(autouse=True)
def scattered_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    POLICIES["scatter"] = scatter
    yield
    del POLICIES["scatter"]
    torch.set_num_threads(before)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_hazard_is_equal_or_refused(name: str, train: bool) -> None:
    model = make(name).train(train)
    args, kwargs = model.example_inputs(), model.example_kwargs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these models make torch warn in eager, too
        if name in REFUSED:
            with pytest.raises((TraceError, DifferenceError), match=type(model).__name__):
                _partitioned(model, args, kwargs)
            return
        parallel = _partitioned(model, args, kwargs)
        assert_equal_runs(model, parallel, args, kwargs, train=train)


def _partitioned(model: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> torch.nn.Module:
    lanes = ["cpu:0", "cpu:1", "cpu:2"]
    twin = copy.deepcopy(model)
    return partition(twin, lanes, example_inputs=args, example_kwargs=kwargs, policy="scatter", grain=1e-9)
