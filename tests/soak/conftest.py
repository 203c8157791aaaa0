"""What the soak tests share: jobs, and a table at the end that can be pasted into docs/soak.md.

The counts are the ones that are promised; HOLDFAST_SOAK=0.1 makes a tenth of them for a short run while developing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.launcher.conftest import jobs

__all__ = ["jobs"]

Row = tuple[str, str, str]
_ROWS: list[Row] = []


def promised(count: int) -> int:
    """This many, or the share of it that HOLDFAST_SOAK asks for."""
    return max(2, round(count * float(os.environ.get("HOLDFAST_SOAK", "1"))))


@pytest.fixture
def row() -> Callable[[str, str, str], None]:
    """`row("restarts after kill -9", "100 of 100", "details")` adds a line to the table."""
    return lambda what, result, detail: _ROWS.append((what, result, detail))


@pytest.fixture(scope="session", autouse=True)
def _print_table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if _ROWS:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print("\n\n| soak | result | |\n|---|---|---|")
            for row in _ROWS:
                print("| " + " | ".join(row) + " |")
