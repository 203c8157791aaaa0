"""What the newest journal of this node tells.

Does not cover: journals in run directories that a user chose.
"""

from __future__ import annotations

import os
import socket

from ...journal.event import Event, decode
from ...journal.run_dir import default_folders
from ...journal.writer import file_name

TAIL = 16 * 1024


def last_event() -> Event | None:
    """The last event of this node's newest journal."""
    path = newest()
    if not path:
        return None
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        events = [event for each in file.read().splitlines() if (event := decode(each))]
    return events[-1] if events else None


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
