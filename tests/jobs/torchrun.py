"""How tests start programs with torchrun: as users do (`command`), or with ranks that need no start of their own (`start`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

TESTS = Path(__file__).parents[1]


def command(
    ranks: int, program: Path, *arguments: object, options: tuple[str, ...] = (), module: str = "torch.distributed.run"
) -> list[str]:
    """What starts a program."""
    torchrun = ["-m", module, "--standalone", "--nproc-per-node", str(ranks), *options]
    return [sys.executable, *torchrun, str(program), *map(str, arguments)]


def environment(**variables: object) -> dict[str, str]:
    """With one thread for each rank, and the package that lies beside these tests, whichever is installed.

    What is compiled of it is written: each rank of each job would compile it again, which takes longer than to import it.
    """
    own = {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        **variables,
        "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
    }
    return {**os.environ, **{key: str(value) for key, value in own.items()}}


def start(
    ranks: int, program: Path, *arguments: object, options: tuple[str, ...] = (), timeout: float = 120, **variables: str
) -> str:
    """Run a program to its end, which must be a good one; what it printed. Its ranks are forks of one process."""
    asked = command(ranks, program, *arguments, options=options, module="jobs.forked")
    shell = environment(**variables)
    shell["PYTHONPATH"] += f"{os.pathsep}{program.parent}"  # where a program finds its neighbours, and a fork does not look
    job = subprocess.Popen(asked, stdout=PIPE, stderr=PIPE, text=True, env=shell)
    try:
        out, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.terminate()  # torchrun then ends its ranks, which a kill would leave behind
        out, errors = job.communicate(timeout=60)
        errors = f"{program.name} was not done after {timeout} s. {errors}"
    assert job.returncode == 0, out + errors
    return out


def cases(request: pytest.FixtureRequest) -> set[str]:
    """The names that this run calls tests of a file with: quick ones, all, or what ``-k`` picks. A job does no others."""
    called = [item.callspec.params for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return {str(given["name"]) for given in called if "name" in given}
