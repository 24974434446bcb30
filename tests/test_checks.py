"""What a model only checks is an op: it ended the graph there, and on two devices `torch.distributions` were refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hostile.program import Asserts, Two, rand
from lanes import programs
from lanes import spread as on_lanes
from pretend import TWO, World, spread
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import TanhTransform

from partitioner import PartitionerError, TraceError
from partitioner.distributed.traced.example import example_in
from partitioner.frontend.capture.tensors.checks import checked

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")

WAYS: list[Callable[[nn.Module, Tensor], Any]] = [
    lambda model, x: on_lanes(model, x, lanes=2, copy=True),
    lambda model, x: spread(model, (x,), TWO, copy=True),
]
EACH = pytest.mark.parametrize("partitioned", WAYS, ids=["lanes", "devices"])


@pytest.fixture(autouse=True)
def _distributions_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test's first torch.compile has turned that off for the process."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


class Raises(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        if not y.isfinite().all():
            raise ArithmeticError("not finite")
        return y * self.right(x)


class Says(Two):
    """In a loop, of which no graph can be half; and its text needs the values."""

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for layer in (self.left, self.right):
            found.append(layer(x))
            bad = ~found[-1].isfinite()
            if bad.any():
                text = f"{int(bad.sum())} of {tuple(x.shape)} after {layer}"
                raise KeyError(text, len(text)) from None
        return found[0] * found[1]


class Helped(Two):
    """Torch's own check, and one in a function that is called under a mode."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.look(x)
        y = self.left(x)
        torch._assert(y.isfinite().all(), f"not finite: {y.shape[1:]}")
        return y * self.right(x)

    def look(self, x: Tensor) -> None:
        if x.isnan().any() or x.abs().max().item() > 1e30:
            raise ValueError(x.sum())


class Encoder(Two):
    """A variational one, with statistics that training writes and numbers that are drawn before the check and after."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found = Normal(self.left(self.norm(x)), self.right(self.drop(x)).exp())
        return found.rsample() + found.log_prob(x)


class Policy(Two):
    def forward(self, x: Tensor) -> Tensor:
        policy = Categorical(logits=self.left(x))
        action = policy.sample()
        return policy.log_prob(action) * self.right(x).sum(-1) + policy.entropy()


class Others(Two):
    def forward(self, x: Tensor) -> Tensor:
        chance = Independent(Bernoulli(probs=self.left(x).sigmoid()), 1)
        squashed = TransformedDistribution(Normal(self.right(x), 1.0), [TanhTransform(cache_size=1)])
        share = Beta(self.left(x).exp(), self.right(x).exp())
        return chance.log_prob((x > 0).float()) + squashed.log_prob(squashed.rsample()).sum(-1) + share.entropy().sum(-1)


class Correlated(Two):
    """A matrix of which torch asks first whether it is symmetric."""

    def forward(self, x: Tensor) -> Tensor:
        root = self.left(x)
        found = MultivariateNormal(self.right(x), covariance_matrix=root.unsqueeze(-1) * root.unsqueeze(-2) + torch.eye(4))
        return found.rsample() * found.log_prob(x).unsqueeze(-1)


class Translates(Encoder):
    """Its handler makes another error of it."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.clamp(-9, 9))
        try:
            if not x.isfinite().all():
                raise ArithmeticError("not finite")
        except ArithmeticError as error:
            raise LookupError(f"{error}!") from error
        finally:
            y = y + 1
        return y * self.right(x)


KINDS = [Asserts, Raises, Says, Helped, Encoder, Policy, Others, Correlated, Translates]


@pytest.mark.sampled(3)
@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_checks_is_one_graph(kind: type[Two], partitioned: Any, world: World) -> None:
    model = kind()
    parallel = partitioned(model, rand(grad=True))
    for rows in (3, 3, 5):
        mine, theirs = rand(rows, 4, seed=rows, grad=True), rand(rows, 4, seed=rows, grad=True)
        one, other = seeded(model, mine), seeded(parallel, theirs)
        torch.testing.assert_close(other, one, check_device=False)
        one.sum().backward(), other.sum().backward()
        torch.testing.assert_close(theirs.grad, mine.grad, check_device=False)
    assert not any(piece.reason for piece in parallel._partitioner_programs.pieces)


@pytest.mark.sampled(3)
@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_raises_is_what_eager_raises(kind: type[Two], partitioned: Any, world: World) -> None:
    """Its class and its text; and then the next call runs."""
    model = kind()
    parallel = partitioned(model, rand())
    for factor in (float("inf"), float("nan")):
        errors = []
        for each in (model, parallel):
            with pytest.raises(Exception) as raised:
                seeded(each, rand().abs() * factor)
            errors.append(raised.value)
        assert type(errors[0]) is type(errors[1])
        assert str(errors[0]) == str(errors[1])
    torch.testing.assert_close(seeded(parallel, rand()), seeded(model, rand()), check_device=False)


def seeded(model: Any, *inputs: Tensor) -> Any:
    torch.manual_seed(0)
    return model(*inputs)


class Reads(Two):
    """What is asked of the rows is asked before they are read; and a call that fails has not drawn yet, but has counted."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.rows, self.norm, self.drop, self.late = nn.Embedding(9, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), late
        self.more, self.last = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.left(x))
        rows = (x.sum(-1) * 1000).long()
        if not self.late and rows.max() > 8:
            raise LookupError(f"{rows.max()} of 9")
        y = self.drop(y) + self.rows(rows.clamp(max=8) if self.late else rows)
        if self.late and rows.max() > 8:
            raise LookupError
        return y * self.more(self.last(self.drop(self.right(x))))


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("late", [False, True])
def test_a_check_that_fails_leaves_what_eager_leaves(late: bool, partitioned: Any, world: World) -> None:
    """Who leaves out such a batch goes on with the same statistics, and the same random numbers."""
    model = Reads(late)
    parallel = partitioned(model, torch.zeros(3, 4))
    for given in (rand(3, 4).abs(), torch.zeros(3, 4)):
        left = []
        for each in (model, parallel):
            torch.manual_seed(3)
            with pytest.raises(LookupError) if given.any() else nullcontext():
                each(given)
            left.append({"random": torch.rand(4), **{key: value.cpu() for key, value in each.state_dict().items()}})
        torch.testing.assert_close(left[1], left[0])


def test_another_thread_begins_a_call_while_one_fails() -> None:
    """Which program had failed was looked up among those of the latest call, and that one had none yet."""
    parallel = on_lanes(Says(), rand(), lanes=2, copy=True)
    programs = parallel._partitioner_programs
    (piece,) = programs.pieces
    run = piece.executable

    class Meanwhile:
        plan = run.plan

        def __call__(self, arguments: Any) -> Any:
            programs.latest.begin()
            return run(arguments)

    piece.executable = Meanwhile()
    with pytest.raises(KeyError, match="after Linear"):
        parallel(rand() * float("nan"))


class Catches(Raises):
    """What goes on after the error is Python's to decide."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except ArithmeticError:
            return self.right(x.nan_to_num())


class Suppresses(Raises):
    def forward(self, x: Tensor) -> Tensor:
        with Suppressed():
            return super().forward(x)
        return self.right(x.nan_to_num())


class Tries(Two):
    """What it raises it catches itself, behind the jump."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        if y.isnan().any():
            try:
                raise ArithmeticError("not a number")
            except ArithmeticError:
                return self.right(x.nan_to_num())
        return y * self.right(x)


class Suppressed:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, *_: object) -> bool:
        return kind is ArithmeticError


@pytest.mark.parametrize("kind", [Catches, Suppresses, Tries])
def test_what_the_model_may_catch_is_for_python(kind: type[Two], world: World) -> None:
    model, x = kind(), rand()
    parallel = on_lanes(model, x, lanes=1, copy=True)
    for given in (x, x * float("nan"), x):
        torch.testing.assert_close(parallel(given), model(given))
    with pytest.raises(TraceError, match="Python decides on the value of a tensor"):
        spread(model, (x,), TWO, copy=True)


class Counts(Raises):
    """Python sees that there was an error."""

    errors = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        if y.isnan().any():
            self.errors += 1
            warnings.warn(f"error {self.errors}", stacklevel=1)
            raise ArithmeticError
        return y + self.right(x)


def test_what_python_does_before_it_raises_is_done_once() -> None:
    model, x = Counts(), rand()
    parallel = on_lanes(model, x, lanes=2, copy=True)
    for number in range(1, 3):
        with pytest.warns(UserWarning, match=f"error {number}"), pytest.raises(ArithmeticError):
            parallel(x * float("nan"))
        assert parallel.errors == number
    assert programs(parallel) == 1


class Lucky(Two):
    """The next numbers that are drawn pass the check."""

    def forward(self, x: Tensor) -> Tensor:
        chance = torch.rand(())
        if chance > 0.4:
            raise ValueError(f"{chance}")
        return self.left(x) * self.right(x) * chance


def test_an_error_that_does_not_come_again(world: World) -> None:
    """On lanes of one device the random numbers are put back, and the model draws them again."""
    model, x = Lucky(), rand()
    torch.manual_seed(1)  # 0.7576, 0.2793, ...
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    there = spread(model, (x,), TWO, copy=True, check=False)
    here = on_lanes(model, x, lanes=2, copy=True, check=False)
    torch.random.set_rng_state(state)
    with pytest.raises(ValueError, match=r"0\.7576"):
        here(x)
    torch.random.set_rng_state(state)
    with pytest.raises(PartitionerError, match=r"raises an error at line \d+ of Lucky.forward"):
        there(x)


@pytest.mark.parametrize(("kind", "error"), [(Raises, ("ArithmeticError", "not finite")), (Says, ("", "Says.forward"))])
def test_a_job_raises_what_is_known(kind: type[Two], error: tuple[str, str]) -> None:
    """No process of it has all of the model, which could be asked for more: there the error is our own, and says where."""
    ops = [node for node in example_in(kind(), (rand(),), None, 1).traced.graph.fx.nodes if node.target is checked]
    name, text = ops[-1].args[2:]
    assert name == error[0] and str(text).endswith(error[1])
    with pytest.raises(Exception, match=error[1]) as raised:
        checked(torch.tensor(ops[-1].args[1] is False), *ops[-1].args[1:])
    assert type(raised.value).__name__ == (name or "CheckFailed")


def test_a_copy_checks_too() -> None:
    parallel = copy.deepcopy(on_lanes(Says(), rand(), lanes=2, copy=True))
    with pytest.raises(KeyError, match="after Linear"):
        parallel(rand() * float("nan"))
