"""Which modules are the user's, and which are a package that somebody installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from partitioner.model.functions import is_users


@pytest.mark.parametrize(
    ("folder", "users"),
    [
        ("/home/me/project", True),
        ("/opt/venv/lib/python3.12/site-packages", False),  # of another interpreter than the one that runs, as of a venv's base
        ("/home/me/.local/lib/python3.12/site-packages", False),
        ("/usr/lib/python3/dist-packages", False),  # Debian, Colab
    ],
)
@pytest.mark.parametrize("namespace", [False, True])
def test_packages_are_known_wherever_they_are_installed(
    folder: str, users: bool, namespace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of the interpreter's own folder were: of others, globals were compared, and a change of them refused."""
    package, module = ModuleType("a_package"), ModuleType("a_package.part")
    module.__file__ = str(Path(folder, "a_package", "part.py"))
    if not namespace:
        package.__file__ = str(Path(folder, "a_package", "__init__.py"))
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    assert is_users("a_package.part") is users
