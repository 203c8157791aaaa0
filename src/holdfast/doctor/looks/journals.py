"""What the newest journal of this node tells.

Does not cover: journals in run directories that a user chose, unless named.
"""

from __future__ import annotations

import os
import socket

from ...journal.event import Event, decode
from ...journal.run_dir import default_folders
from ...journal.writer import file_name
from ..judgements.warm_start import Refused

REFUSED = "module_refused"
"""The kind of event by which a launcher tells that a module cannot be forked with: `module`, `reason`."""
TAIL = 16 * 1024
MOST = 64 * 1024 * 1024
"""Bytes of one journal that are read; the look has to end."""


def last_event() -> Event | None:
    """The last event of this node's newest journal."""
    path = newest()
    if not path:
        return None
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        events = [event for each in file.read().splitlines() if (event := decode(each))]
    return events[-1] if events else None


def refused(run_dir: str | None = None) -> tuple[list[Refused], str]:
    """What the last job in this run directory, or else of this node, refused; and the directory that says so."""
    path = newest() if run_dir is None else os.path.join(run_dir, file_name(socket.gethostname()))
    if not os.path.isfile(path):
        return [], ""
    found = {}
    with open(path, "rb") as file:
        for each in file.read(MOST).splitlines():
            event = decode(each) if REFUSED.encode() in each else None
            if event and event.kind == REFUSED:
                name = str(event.get("module", "?"))
                found[name] = Refused(name, str(event.get("reason", "?")))
    return list(found.values()), os.path.dirname(path)


def newest() -> str:
    """This node's newest journal in the default run directories; empty when there is none."""
    name = file_name(socket.gethostname())
    found = (0.0, "")
    for folder in default_folders():
        try:
            paths = [os.path.join(each.path, name) for each in os.scandir(folder)]
        except OSError:
            continue
        found = max([found, *((os.stat(path).st_mtime, path) for path in paths if os.path.isfile(path))])
    return found[1]
