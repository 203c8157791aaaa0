"""The second name in a test: on the path of this process for one test, or in the environment of others.

It is never installed in the environment of the tests. The peer of the benchmarks sees that environment, and a package
of its name there would take its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SOURCE

COMPAT = Path(__file__).resolve().parents[2] / "compat"
NAME = "nvidia_resiliency_ext"


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process can import the second name; its modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(COMPAT / "src"))
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for module in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[module]


@pytest.fixture
def alias_path() -> dict[str, str]:
    """The environment in which a process that a test starts can import it."""
    return {"PYTHONPATH": os.pathsep.join([str(COMPAT / "src"), str(SOURCE)])}
