"""A page that is written by hand, but for what stands between two marks. Pure."""

from __future__ import annotations


def filled(page: str, text: str, begin: str, end: str) -> str:
    """The page with this between its marks, each of which has a line. Raises ValueError where it has none."""
    before, begun, rest = page.partition(f"{begin}\n")
    _, ended, after = rest.partition(end)
    if not ended:
        raise ValueError(f"the page has no place for it: {begin} and {end} are missing")
    return f"{before}{begun}{text}\n{ended}{after}"
