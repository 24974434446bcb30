"""Two ranks of a tensor axis compute what one process does, each with its part of every layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs.torchrun import start

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("shared_out")
    start(2, JOBS / "shared_out.py", folder, timeout=240, PYTHONPATH=str(JOBS.parent))
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_random_programs_give_what_eager_gives(ranks: list[dict[str, Any]]) -> None:
    """Outputs, gradients and buffers, with rules chosen at random: in-place ops, views, ties, several outputs among them."""
    for rank in ranks:
        assert max(each["apart"] for each in rank["programs"]) < 2e-4
    assert sum(each["parts"] for each in ranks[0]["programs"]) > 50, "hardly anything was shared out"


def test_ranks_drop_the_same_of_wholes_and_others_of_parts(ranks: list[dict[str, Any]]) -> None:
    """With generators that were seeded differently, ranks would else drop different elements of what should be one value."""
    one, other = (rank["drops"] for rank in ranks)
    assert one["held"]["up.weight"] == "S(0)"
    assert one["dropped"] == other["dropped"], "both see the same, hidden (gathered) and output"
    for hidden, output in one["dropped"]:
        halves = [[row[:256] for row in hidden], [row[256:] for row in hidden]]
        assert halves[0] != halves[1], "each part has its own"
        for dropped in (*halves, output):
            flat = [each for row in dropped for each in row]
            assert 0.3 < sum(flat) / len(flat) < 0.7
    assert one["dropped"][0] != one["dropped"][1], "another step, other elements"
    assert one["drawn"] and not other["drawn"], "the first rank's generator decides, and goes on"


def test_each_rank_reads_its_parts_from_files(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["weights"]
        assert found["apart"] < 1e-5
        assert found["held"] == found["read"] < 0.6 * found["whole"]


def test_inference(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["forward"] < 1e-4 for rank in ranks)
