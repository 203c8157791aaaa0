"""Texts of users, hosts and programs: made safe to show in logs, tables and pictures, and compared. Pure.

What always holds: what comes out has no character that a terminal acts on, and is one line.
Does not cover: the width of characters on a terminal.
"""

from __future__ import annotations

import re
import unicodedata


def escaped(text: str) -> str:
    """The text with whatever is not visible written as Python does (`\\x1b`): names come from users and hosts."""
    if text.isprintable():
        return text
    return "".join(
        sign
        if sign.isprintable() or unicodedata.category(sign) == "Zs"
        else sign.encode("unicode_escape").decode()
        for sign in text
    )


def without_numbers(text: str) -> str:
    """The text with `#` for its numbers: ranks, pids and addresses differ where two failures are the same."""
    return re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", text)
