"""Hypothesis strategies: random modules, device lists and policies, for tests of policies and of the compiler itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from partitioner.errors import SpecError
from partitioner.testing.generate import KINDS, GeneratedModule, build
from partitioner.testing.recipe import OUTPUTS, Recipe, Step

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise ImportError("partitioner.testing draws its modules with hypothesis: pip install hypothesis") from error


def recipes(kinds: Collection[str] = KINDS, max_steps: int = 8) -> SearchStrategy[Recipe]:
    """Random recipes, for `build`.

    Args:
        kinds, max_steps: as for `modules`.
    """
    small = st.integers(0, 7)
    steps = st.builds(
        Step,
        kind=st.sampled_from(tuple(kinds)),
        picks=st.tuples(small, small),
        choice=st.integers(0, 3),
    )
    return st.builds(
        Recipe,
        steps=st.lists(steps, min_size=1, max_size=max_steps).map(tuple),
        batch=st.integers(2, 4),
        width=st.integers(4, 8),
        inputs=st.integers(1, 3),
        image=st.booleans(),
        outputs=st.sampled_from(OUTPUTS),
        seed=st.integers(0, 3),
    )


def modules(kinds: Collection[str] = KINDS, max_steps: int = 8) -> SearchStrategy[GeneratedModule]:
    """Random modules that `torch.fx.symbolic_trace` and `torch.export.export` both take, and that eager can differentiate.

    Between them they hold forks, joins and skips, ops with several outputs, modules called twice, tied weights, nested modules,
    in-place ops on values, views and buffers, random ops, dropout, batch norm, constants, and nested outputs. A failing example
    prints as the source of its class.

    Args:
        kinds: the kinds of step to draw from; the names are in `KINDS`.
        max_steps: the most steps in one module, at least 1.

    Returns:
        A strategy of `GeneratedModule`; each has `example_inputs(seed)`, `recipe` and `source`.

    >>> from hypothesis import given, settings
    >>> from partitioner.testing import assert_equal_runs
    >>> from partitioner.testing import build
    >>> from partitioner.testing import modules
    >>> @settings(max_examples=5, deadline=None, database=None)
    ... @given(modules(max_steps=3))
    ... def test_deterministic(module):
    ...     again = build(module.recipe)
    ...     assert_equal_runs(module, again, module.example_inputs(seed=0), train=True)
    >>> test_deterministic()
    """
    return recipes(kinds, max_steps).map(build)


def device_lists(max_size: int = 4) -> SearchStrategy[list[str]]:
    """Lists of different CPU lanes, `"cpu:0"` to `"cpu:3"`, in any order.

    Args:
        max_size: the most lanes in a list, 1 to 4.
    """
    lanes = [f"cpu:{index}" for index in range(4)]
    return st.lists(st.sampled_from(lanes), min_size=1, max_size=max_size, unique=True)


def fake_device_lists(max_size: int = 8) -> SearchStrategy[list[str]]:
    """Lists of devices for planning only, `"cuda:0"` to `"cuda:7"` and `"cpu"`, with repeats: no such device need exist.

    Args:
        max_size: the most mentions in a list.
    """
    names = [*(f"cuda:{index}" for index in range(8)), "cpu"]
    return st.lists(st.sampled_from(names), min_size=1, max_size=max_size)


def policies(names: Sequence[str]) -> SearchStrategy[str]:
    """The names of policies, simplest first: hypothesis shrinks towards the first name.

    Args:
        names: the policies to draw from, such as `tuple(POLICIES)`.

    Raises:
        SpecError: `names` is empty.
    """
    if not names:
        raise SpecError("policies() got no names; pass the names to draw from, such as ['by_level']")
    return st.sampled_from(tuple(names))
