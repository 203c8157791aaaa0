"""A folder of `torch.distributed.checkpoint`: whether it is complete.

`.metadata` is written when all ranks have written, and names each file with the places in it. What always holds: it is
read as a list of words, never unpickled. Does not cover: a folder that was written into twice; the metadata of the
first save is there while the second writes. Above `LARGEST` bytes of metadata files must be there, whatever their size.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from pathlib import Path

LARGEST = 8 << 20
"""Bytes of metadata in which the sizes are looked for: about a second for each 4 MiB."""
DATA = ".distcp"

_STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}


def metadata_in(folder: Path) -> list[Path]:
    """Its metadata: one file, or one of each rank."""
    one = folder / ".metadata"
    return [one] if one.is_file() else sorted(filter(Path.is_file, folder.glob("__*.metadata")))


def why_incomplete(folder: Path) -> str:
    """Why it is not complete; nothing if it is. Raises OSError."""
    metadata = metadata_in(folder)
    if not metadata:
        return "has no .metadata: not all ranks had written when it was left"
    named_some = False
    for path in metadata:
        raw = path.read_bytes()
        if not (raw.startswith(b"\x80") and raw.endswith(b".")):
            return f"has a {path.name} that is cut off, after {len(raw)} bytes"
        try:
            needed = extents(raw) if len(raw) <= LARGEST else named(raw)
        except (ValueError, IndexError, KeyError) as error:
            return f"has a {path.name} that is damaged: {error}"
        named_some = named_some or bool(needed)
        for name, end in sorted(needed.items()):
            if why := _why_short(folder / name, end):
                return why
    return "" if named_some or _are_others_files(folder) else f"has a {metadata[0].name} that names no file"


def _are_others_files(folder: Path) -> bool:
    """Of a writer that is not torch's, whose metadata say it in another way."""
    names = [path.name for path in folder.iterdir() if not path.name.endswith(".metadata")]
    return bool(names) and not any(name.endswith(DATA) for name in names)


def _why_short(path: Path, end: int) -> str:
    if not path.is_file():
        return f"lacks {path.name}"
    size = path.stat().st_size
    return f"has {size} of at least {end} bytes of {path.name}" if size < end else ""


def named(raw: bytes) -> dict[str, int]:
    """The files that metadata name, each with the one byte that it must have."""
    return {name.decode(): 1 for name in set(re.findall(rb"[\w./-]+\.distcp", raw))}


def extents(raw: bytes) -> dict[str, int]:
    """The files that metadata name, and where the last thing in each of them ends. Raises ValueError."""
    ends: dict[str, int] = {}
    found: dict[str, str | int | None] = {}
    words = _words(raw)
    for word in words:
        if word in ("relative_path", "offset", "length"):
            found[str(word)] = next(words, None)
        if word == "length":
            path, offset, length = found.get("relative_path"), found.get("offset"), found.get("length")
            if isinstance(path, str) and isinstance(offset, int) and isinstance(length, int):
                ends[path] = max(ends.get(path, 1), offset + length)
    return ends


def _words(raw: bytes) -> Iterator[str | int | None]:
    """The texts and numbers of a pickle, in their order. Raises ValueError where it is none."""
    remembered: dict[int, str | int | None] = {}
    last: str | int | None = None
    for operation, argument, _ in pickletools.genops(raw):
        name = operation.name
        if name == "MEMOIZE":
            remembered[len(remembered)] = last
        elif name in _PUT and argument is not None:
            remembered[int(argument)] = last
        elif name in _STRINGS or name in _NUMBERS:
            last = argument
            yield last
        elif name in _GET and argument is not None:
            last = remembered.get(int(argument))
            if last is not None:
                yield last
        else:
            last = None
