"""A file of `torch.save`: whether it is complete, from its structure.

Such a file is a zip archive whose directory is written last and at its end, so a file that was cut anywhere has none.
What always holds: only the ends of the file and the directory are read, and nothing is unpickled. Does not cover:
bytes that changed, or zeros in the middle that a power cut left; torch's format before 1.6, which does not show its
length.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

_END = b"PK\x05\x06"
_END_SIZE = 22
_HEADER_SIZE = 30
_OLD = b"\x80"  # a pickle


def why_incomplete(path: Path) -> str:
    """Why it is not complete; nothing if it is. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(4)
        if not first:
            return "is empty"
        if first.startswith(_OLD):
            return "is in torch's format before 1.6, which does not show whether a file is complete"
        if first != b"PK\x03\x04":
            return f"is no file of torch.save: it begins with {first!r}"
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_SIZE))
        if file.read(4) != _END:
            return f"is cut off, after {size} bytes"
    try:
        with zipfile.ZipFile(path) as archive:
            return _of(archive)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        return f"is damaged: {error}"


def _of(archive: zipfile.ZipFile) -> str:
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    if not pickles:
        return "is a zip archive, but not of torch.save: it has no data.pkl"
    ends = [entry.header_offset for entry in entries[1:]] + [archive.start_dir]
    if entries[0].header_offset != 0:  # the directory counts from another beginning
        return "is damaged: bytes are missing from it, or were put before it"
    for entry, end in zip(entries, ends, strict=True):
        if entry.header_offset + _HEADER_SIZE + len(entry.filename) + entry.compress_size > end:
            return f"is damaged: {entry.filename} has no room for its {entry.compress_size} bytes"
    return ""
