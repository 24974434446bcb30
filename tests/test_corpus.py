"""The corpus benchmark on its fixed sample, and that it would tell if something were wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import _corpus_models
import _judge
import corpus
from _judge import Row

from partitioner import TraceError


@pytest.fixture(autouse=True)
def one_thread():
    """Bits of a reduction depend on how many threads share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CHAINS = {"user/unet"}
"""Nothing in these runs beside anything else: a U-Net's skips only wait for the way down and up again."""


LONG = {"user/unet", "user/nano_gpt", "torchvision/squeezenet1_1", "transformers/distilbert"}

JUDGED = [
    pytest.param(name, mode, id=f"{name}-{mode}", marks=[] if number % 2 == turn and name not in LONG else [pytest.mark.slow])
    for number, name in enumerate(_corpus_models.SAMPLE)
    for turn, mode in enumerate(corpus.MODES)
]
"""Every model of the sample in both modes; quick tests take some of those that do not take long, the modes in turns."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "mode"), JUDGED)
def test_the_sample_is_equal(name: str, mode: str) -> None:
    if not _corpus_models.CORPUS[name].installed:
        pytest.skip(f"{_corpus_models.CORPUS[name].library} is not installed")
    row = _judge.judge(name, mode)
    assert row.verdict in ("equal", "rounding"), row
    assert row.lanes > 1 or name in CHAINS, "spreading was not forced"
    assert row.keys == "yes"


def test_every_name_is_a_model_of_its_own() -> None:
    assert len(_corpus_models.CORPUS) > 300
    assert set(_corpus_models.SAMPLE) <= set(_corpus_models.CORPUS)


class Noisy(nn.Module):
    """Not the model that it stands for, by one part in a thousand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.001


class Flaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Deciding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else -x


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not in eager either")


def judged(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module]) -> Row:
    entry = _corpus_models.Entry("made/up", "made", "torch", model, lambda batch=2, seed=1: ((torch.randn(batch, 3),), {}))
    monkeypatch.setitem(_corpus_models.CORPUS, "made/up", entry)
    return _judge.judge("made/up", "eval")


def test_a_silent_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is made of another model than eager runs, as if tracing or placement had gone wrong."""
    honest = _judge.spread
    monkeypatch.setattr(_judge, "spread", lambda _model, args, kwargs: honest(Noisy(), args, kwargs))
    row = judged(monkeypatch, nn.Identity)
    assert row.verdict == "different"
    assert "outputs: call 0: output: 6 of 6 elements differ" in row.reasons[0]
    assert "**" in row.outputs


@pytest.mark.parametrize(
    ("model", "verdict", "says"),
    [
        (Flaky, "eager", "eager differs from itself"),
        (Broken, "eager", "not in eager either"),
    ],
)
def test_verdicts(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], verdict: str, says: str) -> None:
    row = judged(monkeypatch, model)
    assert row.verdict == verdict
    assert says in row.reasons[0]


def test_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TraceError("cannot be one graph")

    monkeypatch.setattr(_judge, "spread", refuse)
    row = judged(monkeypatch, nn.Identity)
    assert (row.verdict, row.reasons) == ("refused", ["partition: TraceError: cannot be one graph"])


def test_a_model_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    row = judged(monkeypatch, Deciding)
    assert (row.verdict, row.graphs, row.fake) == ("equal", 2, "2 graphs: one device only")


def test_rounding_is_not_a_difference() -> None:
    one = torch.linspace(0, 1, 5)
    cells = [_judge._group({"y": one}, {"y": one + gap}) for gap in (0.0, 1e-6, 1e-2)]
    assert [verdict for _, verdict, _ in cells] == ["equal", "rounding", "different"]


def test_models_are_chosen() -> None:
    assert corpus.chosen(corpus.arguments(["--quick"])) == [
        name for name in _corpus_models.SAMPLE if _corpus_models.CORPUS[name].installed
    ]
    assert len(corpus.chosen(corpus.arguments(["--family", "user", "--sample", "7"]))) == 7
    with pytest.raises(SystemExit, match="no model of the corpus is called user/none"):
        corpus.chosen(corpus.arguments(["user/none"]))


def test_the_report_counts_and_explains() -> None:
    rows = [
        Row("user/a", "user", "eval", 1, 3, 2, "bits", "", "bits", "yes", {"batch 1": "bits"}, "8 GPUs", "equal"),
        Row("user/a", "user", "train", 2, 4, 2, "1e-07", "bits", "bits", "yes", {}, "8 GPUs", "rounding"),
        Row("user/b", "user", "eval", verdict="refused", reasons=["TraceError: a | b"]),
    ]
    text = corpus.report(rows)
    assert "| user/a | equal / rounding | 1 / 2 " in text
    assert "2 ran: 1 as one graph, 1 in pieces with Python between them, 0 as eager." in text
    assert "3 / 4" in text and "bits / 1e-07" in text
    assert "- user/b (eval): `TraceError: a | b`" in text
    total = next(line for line in corpus.summary(rows).splitlines() if "**all**" in line)
    assert [cell.strip() for cell in total.split("|")[1:-1]] == "**all** 2 1 1 1 0 0 0".split()


@pytest.mark.slow
def test_a_worker_that_hangs_or_dies_ends_only_its_model() -> None:
    jobs = [("user/unet", "eval"), ("user/text_cnn", "eval")]
    hung, died = corpus.judge_all(jobs, workers=1, timeout=0.01)
    assert "no end after 0.01 s" in hung.reasons[0] and "no end" in died.reasons[0]
    (row,) = corpus.judge_all(jobs[1:], workers=1, timeout=120)
    assert row.verdict == "equal"
