"""Open files on network filesystems: what a hung file server would hold.

Always holds: only links and the list of mounts are read; no file is opened or looked at, since that may never return.
Does not cover: files that are mapped and closed, and the working directory of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .kernel_file import content, link, names

MOST = 16
_MOST_LOOKED_AT = 2048
# fmt: off
_KINDS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "9p", "beegfs", "afs", "ocfs2", "gfs2",
    "glusterfs", "pvfs2", "orangefs", "wekafs", "panfs", "mmfs", "virtiofs", "coda",
})
# fmt: on
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_files(pid: int) -> tuple[str, ...]:
    """As `path (nfs4)`, each once; the working directory too."""
    mounts = network_mounts(content(f"/proc/{pid}/mountinfo", 4 << 20))
    if not any(mounts.values()):
        return ()
    handles = names(f"/proc/{pid}/fd")[:_MOST_LOOKED_AT]
    return on_network(
        [link(f"/proc/{pid}/cwd"), *(link(f"/proc/{pid}/fd/{each}") for each in handles)], mounts
    )


def network_mounts(mountinfo: str) -> dict[str, str]:
    """Mount point -> kind of filesystem for those that come over a network, -> '' for the others (proc(5))."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and after:
            found[_plain(fields[4])] = kind if _over_a_network(kind := after.split()[0]) else ""
    return found


def _over_a_network(kind: str) -> bool:
    """What lies behind a filesystem of the user's own (fuse: sshfs, s3fs, gcsfuse) is mostly a network."""
    return kind in _KINDS or kind == "fuse" or kind.startswith("fuse.")


def on_network(paths: Iterable[str], mounts: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the paths that lie on a network filesystem. Pure."""
    found: dict[str, None] = {}
    for path in paths:
        place = path
        while place.startswith("/") and place not in mounts and place != "/":
            place = place.rpartition("/")[0] or "/"
        if path.startswith("/") and mounts.get(place):
            found[f"{path} ({mounts[place]})"] = None
    return tuple(found)[:MOST]


def _plain(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)
