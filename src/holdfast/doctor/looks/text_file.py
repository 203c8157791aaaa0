"""Small files of the kernel."""

from __future__ import annotations


def line(path: str) -> str | None:
    """The first line, stripped; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None


def number(path: str) -> int | None:
    """The number in it; None where there is none (`max`, no file)."""
    text = line(path)
    return int(text) if text and text.lstrip("-").isdecimal() else None


def table(path: str) -> dict[str, str]:
    """Lines `name value` or `name: value`; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            parts = [each.split(None, 1) for each in file]
    except OSError:
        return {}
    return {each[0].rstrip(":"): each[1].strip() for each in parts if len(each) == 2}
