"""Names of users and hosts made safe to show in logs, tables and pictures. Pure.

What always holds: what comes out has no character that a terminal acts on, and is one line.
Does not cover: the width of characters on a terminal.
"""

from __future__ import annotations

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
