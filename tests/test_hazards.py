"""Each hazard of `tests/models` comes out equal, spread over three lanes whether that pays or not.

Where Python decides on data, keeps tensors from call to call, or hooks into backward, forward becomes several graphs, or state
that the graph takes and gives. None of these models has to be refused.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch

from models import MODELS, make
from partitioner import partition
from partitioner.planner.policies import POLICIES
from partitioner.testing import assert_equal_runs
from scatter import scatter


@pytest.fixture(autouse=True)
def scattered_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    POLICIES["scatter"] = scatter
    yield
    del POLICIES["scatter"]
    torch.set_num_threads(before)


IN_BOTH = [
    pytest.param(name, train, id=f"{name}-{mode}") for name in MODELS for mode, train in (("train", True), ("eval", False))
]
"""Every model in both modes."""


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("name", "train"), IN_BOTH)
def test_a_hazard_comes_out_equal(name: str, train: bool) -> None:
    model = make(name).train(train)
    args, kwargs = model.example_inputs(), model.example_kwargs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these models make torch warn in eager, too
        twin, lanes = copy.deepcopy(model), ["cpu:0", "cpu:1", "cpu:2"]
        parallel = partition(twin, lanes, example_inputs=args, example_kwargs=kwargs, policy="scatter", grain=1e-9)
        assert_equal_runs(model, parallel, args, kwargs, train=train)
