"""The file that keeps learned limits from job to job, as the documents name it and NVRx writes it.

What always holds: it is complete or as it was before (written aside, flushed, renamed); a file that is missing,
damaged or full of unknown keys stops nothing. Does not cover: what the limits in it mean (`RankMonitorClient`).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

KEY = "current_timeouts"
LARGEST = 1 << 20
"""Bytes. A file of limits has a few hundred."""


class Damaged(Exception):
    """A file that holds no state; the text says what it holds instead."""


def read(path: Path) -> str:
    """What the file says, unparsed; nothing if there is no such file. Raises Damaged."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > LARGEST:
        raise Damaged(f"{path} has more than {LARGEST} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is no text: {error}") from error


def parse(text: str, part: str) -> dict[str, Any]:
    """The state in a file's text, with this part of the limits only. Raises Damaged."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is not JSON: {error}") from error
    limits = state.get(KEY) if isinstance(state, dict) else None
    if not isinstance(limits, dict):
        raise Damaged(f"it has no mapping {KEY!r}")
    if part == "heartbeat" and part not in limits and "initial" in limits:  # NVRx's oldest form
        return {KEY: limits}
    return of(state, part)


def of(state: dict[str, Any], part: str) -> dict[str, Any]:
    """The state with this part of its limits only, "heartbeat" or "section"."""
    limits = state[KEY]
    return {KEY: {part: limits[part]} if part in limits else {}}


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    aside = path.with_name(f"{path.name}.partial")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
