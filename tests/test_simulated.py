"""The streams backend on an accelerator that is not there: real streams, real events, real memory, kernels that are late.

What `test_streams` tells by a recorder of what is issued, and `test_gpu` on a device that most machines have not, runs here: on
devices whose streams are threads (`simulated/ops.cpp`). Each case has a process of its own, for a process has one accelerator.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from simulated.cases import CASES

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # the first one builds the device
    pytest.mark.skipif(shutil.which("ninja") is None or shutil.which("c++") is None, reason="needs a compiler for C++"),
]


@pytest.mark.parametrize("name", CASES)
def test_on_simulated_devices(name: str) -> None:
    run = subprocess.run([sys.executable, "-m", "simulated.cases", name], cwd=HERE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "ops on streams" in run.stdout
