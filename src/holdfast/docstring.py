"""Sections of docstrings that are made from values, so that defaults and meanings are written once. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 92
"""Columns of a line; `help` indents the docstring of a class by up to 8 more."""


def section(heading: str, items: Iterable[tuple[str, str]]) -> str:
    """A section in Google style, without an empty line at its end.

    Args:
        heading: like ``Args``.
        items: name (with its type, if that is to be shown) and description of each item.
    """
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([f"{heading}:", *(wrapper.fill(f"{name}: {text}") for name, text in items)])
