"""Folders that a job writes to: run directories, and temporary files. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import MIB, size

LITTLE = 100 * MIB
LONGEST = 60
"""Characters of a temporary folder's path: a socket's path in it may have 107 in all. Source: unix(7)."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that a job would make, or use as it is."""

    path: str
    error: str = ""
    """Why a job of this user cannot use it; empty when it can."""
    free: int = 0
    """Bytes."""


def run_directory(state: Folder, fallback: Folder, *, chosen: bool = False) -> Finding:
    """Where journals go; `chosen` when the user named it."""
    check = "run directory"
    if not state.error:
        told = f"{state.path}: writable, {size(state.free)} free"
        if state.free < LITTLE:
            return note(check, told, "free some space: what a full disk cannot take is lost from the journal")
        return ok(check, told)
    told = f"{state.path} cannot be used: {state.error}"
    if chosen:
        return problem(check, f"{told}; ft_launcher will not start", "name a folder of your own")
    if fallback.error:
        return problem(
            check, f"{told}; nor can {fallback.path}: {fallback.error}", "give ft_launcher --ft-run-dir DIR"
        )
    return note(
        check,
        f"{told}; journals go to {fallback.path}, where they may be cleaned away",
        "mend it, or give ft_launcher --ft-run-dir DIR",
    )


def temporary(found: Folder, wanted: str | None) -> Finding:
    """Where Python puts temporary files; `wanted` is $TMPDIR."""
    check = "temporary folder"
    if found.error:
        return problem(
            check, f"{found.path}: {found.error}", "set TMPDIR to a folder of your own that can be written"
        )
    told = f"{found.path}: writable, {size(found.free)} free"
    if wanted and wanted != found.path:
        return note(check, f"{told}; TMPDIR={wanted} cannot be used", "make that folder, or unset TMPDIR")
    if found.free < LITTLE:
        return note(check, told, "free some space: data loaders and compilers write there")
    if len(found.path) > LONGEST:
        return note(
            check,
            f"{told}; its path has {len(found.path)} characters, and sockets in it may have 107 in all",
            "set TMPDIR to a shorter path",
        )
    return ok(check, told)
