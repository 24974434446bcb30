"""What lies between a call and its program: however a call ends, the thread is left as torch.compile would leave it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from lanes import OLD_TORCH
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, get_eval_frame_callback
from torch.nn import functional as F

from partitioner import Parallel, TraceError, partition
from partitioner.frontend.capture import frames
from partitioner.frontend.capture.dynamo import TRIES, compiled

ROWS = torch.tensor([1, 2])


class Looks(nn.Module):
    """Looks rows up, which fails for one that there is not; and if it is asked to, it decides on data."""

    def __init__(self, decides: bool = False) -> None:
        super().__init__()
        self.table, self.decides = nn.Embedding(4, 3), decides

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = self.table(rows)
        if self.decides and bool(found.sum() > 1e9):
            return rows
        return F.dropout(found, 0.5, self.training)


def on_lanes(model: nn.Module) -> Parallel:
    return partition(model, ["cpu", "cpu"], example_inputs=(ROWS,), copy=True)


def returns(model: nn.Module) -> None:
    on_lanes(model)(ROWS)


def raises(model: nn.Module) -> None:
    with pytest.raises(IndexError):
        on_lanes(model)(torch.tensor([1, 9]))


def is_refused(model: nn.Module) -> None:
    model.decides = True
    with pytest.raises(TraceError):
        compiled(model, lambda found: found.module.forward, whole=True)(ROWS)


@pytest.mark.parametrize("ends", [returns, raises, is_refused])
def test_after_a_call_nothing_is_traced(ends: Callable[[nn.Module], None]) -> None:
    ends(Looks())
    assert get_eval_frame_callback() is None


def test_inside_of_torch_compile_its_tracer_goes_on() -> None:
    parallel, seen = on_lanes(Looks().eval()), []

    def around(rows: torch.Tensor) -> torch.Tensor:
        found = parallel(rows)
        return found * 2

    def backend(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        seen.append(module)
        return module.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(around, backend=backend)(ROWS)
    assert torch.equal(found, parallel(ROWS) * 2)
    assert seen, "what comes after it is traced"


def test_torch_is_told_to_run_everything_as_it_is() -> None:
    """`torch.compiler.set_stance` is asked in each call, as torch.compile asks it."""
    parallel = on_lanes(Looks().eval())
    programs = parallel._partitioner_programs.pieces
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(parallel(torch.tensor([0, 1, 2])), parallel.table.weight[:3])
    assert len(programs) == 1
    parallel(torch.tensor([0, 1, 2]))
    assert len(programs) == 2


def test_dropout_is_called_without_its_wrapper() -> None:
    """`F.dropout` looks its op up in Python, which takes longer than the op in eval mode; the numbers drawn are the same."""
    model = Looks()
    parallel = on_lanes(model)
    assert "torch_dropout(" in parallel.code
    torch.manual_seed(0)
    found = parallel(ROWS)
    torch.manual_seed(0)
    assert torch.equal(found, model(ROWS))


def test_guards_that_nothing_depends_on_are_left_out_and_hooks_are_still_seen() -> None:
    """A third of BERT's guards: hooks that want keywords are among the hooks, and a mark says how the next program is made."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3)
    parallel = partition(model, ["cpu"], example_inputs=x)
    code = parallel._partitioner_programs.forward.entry.__code__
    guards = "".join(str(entry.guard_manager) for entry in _debug_get_cache_entry_list(code))
    assert "_forward_hooks" in guards and "with_kwargs" not in guards
    assert OLD_TORCH or "_dynamo_dynamic_indices" not in guards
    wanted = parallel(x)
    handle = model[1].register_forward_hook(lambda module, args, kwargs, output: output + 1, with_kwargs=True)
    assert torch.equal(parallel(x), wanted + 1)
    handle.remove()
    torch._dynamo.mark_dynamic(x, 0)
    assert torch.equal(parallel(x), wanted) and torch.allclose(parallel(x[:1]), wanted[:1])


class LeavesEarly(nn.Module):
    """A loop that data may end: Dynamo cannot go on in the midst of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.max() > 1e9:
                break
        return x


def test_a_frame_that_runs_as_it_is_is_not_prepared_for_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call held back signals and set settings, to find that there is nothing to trace: 0.8 ms of a call of 0.1 ms."""
    model, x = LeavesEarly(), torch.randn(2, 3)
    parallel = partition(model, ["cpu", "cpu"], example_inputs=x, copy=True)
    for _ in range(TRIES):
        parallel(x)
    prepared: list[object] = []
    monkeypatch.setattr(frames, "held_back", lambda: prepared.append(None) or nullcontext())
    assert torch.equal(parallel(x), model(x))
    assert not prepared
    partition(Looks(), ["cpu", "cpu"], example_inputs=ROWS)
    assert prepared, "it is asked wherever something is traced"
