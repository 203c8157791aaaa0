"""Other import names that Holdfast answers, reported by the distributions that register in an entry-point group."""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "holdfast.import_names"
"""An entry point is a function that returns pairs: import names, and which distribution answers for them."""


def read() -> list[tuple[str, str]]:
    """All pairs; an entry point that fails is reported instead of its pairs."""
    found: list[tuple[str, str]] = []
    for entry in entry_points(group=GROUP):
        try:
            found += entry.load()()
        except Exception as error:  # of another distribution
            found.append((entry.name, f"unknown: {type(error).__name__}: {error}"))
    return found
