"""The checks of `holdfast doctor`, for docs/reference/checks.md. Pure.

A new check is an entry here, in its place in the report.
"""

from __future__ import annotations

CHECKS = {
    "python": "the launcher's Python, and that of the ranks if `PYTHON_EXEC` names another one",
    "torch": (
        "the version of the ranks' torch, from its package. Not installed, or older than 2.8: a problem; "
        "older for the Python that runs `holdfast doctor` itself: one line and exit code 2. Newer than [the "
        "tested versions](versions.md): a note"
    ),
    "NVIDIA driver": (
        "whether there is one, and whether warm start has passed its [checks on a GPU](gpu.md) for this "
        "version: if not, `--ft-warm-start auto` stays cold with a driver"
    ),
    "import names": "only with `holdfast-nvrx`: which distribution answers for which import",
    "shared memory": (
        "`/dev/shm` exists, is in memory, can be written, and has room for the boards of the ranks. 64 MiB, "
        "the default of containers, is too little for data loader workers"
    ),
    "memory": (
        "what machine and container have left for each rank. A rank takes about 250 MB once it has imported "
        "torch"
    ),
    "processes": "the narrowest limit of processes and threads: of the user, the container, the machine",
    "open files": "enough for the launcher, and for data loaders",
    "kernel": (
        "process handles, subreaper, parent-death signals, locks, `/proc`: each is tried. Old kernels and "
        "sandboxes lack some"
    ),
    "ptrace": "whether one process of yours may read another, tried: native stacks of ranks need it",
    "loopback port": "a port of 127.0.0.1 can be listened on and connected to, tried",
    "interfaces": (
        "only with `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` or `TP_SOCKET_IFNAME`: whether there are such "
        "interfaces"
    ),
    "localhost": "resolves to this machine's loopback, and this machine can listen there",
    "host name": (
        "the addresses of the machine's own name. A loopback address (`127.0.1.1` in `/etc/hosts`) is fine on"
        " one node and wrong for several"
    ),
    "dead jobs' boards": (
        "directories in `/dev/shm` of launchers that were killed. The next `ft_launcher` of the same user "
        "removes them"
    ),
    "orphaned ranks": "processes of a rank whose launcher is dead. They may hold GPU memory, ports and files",
    "run directory": "can be made and written, belongs to you, and no other user can write to it",
    "GPUs": (
        "the [health of the node](health.md), as a launcher checks it; a sick node is a problem. Of GPUs: "
        "errors, lost rows, NVLinks, brakes, Xids"
    ),
    "network cards": "speed and state of the ports in sysfs",
    "machine": "memory, `/dev/shm` and disk",
    "storage": "the paths of `--storage-path`",
    "command": "only with `--health-command`: its last line of output",
    "trial": (
        "only with `--trial`: the time of the imports and of a fork, modules that cannot be imported, and "
        "modules that are not imported ahead"
    ),
    "warm start": (
        "yes, or no and why. With `PYTHON_EXEC` or `${local_rank}` among the script's arguments ranks start "
        "cold"
    ),
}
"""Every check in the order of the report, and what it reports, in Markdown."""
