"""Launchers of several nodes, whose ranks are started cold unless a test asks for `warm`."""

from __future__ import annotations

import pytest

from tests.monitor.job import freezer

__all__ = ["freezer"]


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks are started is rarely the topic here, and a zygote imports torch."""
    monkeypatch.setenv("PET_FT_WARM_START", "off")


@pytest.fixture
def warm(cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks from zygotes, as by default."""
    monkeypatch.delenv("PET_FT_WARM_START")
