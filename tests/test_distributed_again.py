"""A job may make parts of models as often as it likes: process groups that nobody needs any more are given back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jobs import again
from jobs.torchrun import start

from partitioner.distributed.groups import MANY


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts files in /proc")
@pytest.mark.slow
def test_parts_that_are_dropped_leave_no_files_open(tmp_path: Path) -> None:
    """Each part left twelve sockets and nine threads to the end of the job; with four ranks the 54th found none to open.

    A part that is kept trains on, also where one rank dropped others later than the other one did.
    """
    start(2, Path(again.__file__), tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        first, last = found["files"][:MANY], found["files"][MANY:]
        assert max(last) <= max(first), f"rank {rank} keeps files open: {found['files']}"
        assert found["losses"] == pytest.approx([found["losses"][0]] * 3)
