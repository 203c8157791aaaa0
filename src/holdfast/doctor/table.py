"""Findings, and how they are printed: one line each for people, one object for programs. Pure.

Always holds: a finding is one line, whatever the names of files and hosts contain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ..visible import escaped

OK, NOTE, PROBLEM = "ok", "note", "problem"
VERDICTS = (OK, NOTE, PROBLEM)
"""From good to bad. A note is worth knowing; with a problem some trainings fail or run without supervision."""
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
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """The name of the check: `shared memory`."""
    verdict: str
    """One of `VERDICTS`."""
    what: str
    """The facts."""
    advice: str = ""
    """What to do, as sentences; empty for `OK` only."""


def ok(check: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(check, OK, what)


def note(check: str, what: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, NOTE, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Some trainings will fail."""
    return Finding(check, PROBLEM, what, advice)


def worst(findings: Iterable[Finding]) -> str:
    """The worst verdict among the findings; `OK` of none."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default=OK)


def report(findings: Sequence[Finding]) -> str:
    """The lines, and a last one with the number of problems and notes."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        text = ". ".join(part for part in (finding.what, finding.advice) if part)
        lines.append(escaped(f"{finding.verdict:<7}  {finding.check:<{width}}  {text}"))
    verdicts = Counter(finding.verdict for finding in findings)
    numbers = [count(verdicts[verdict], verdict) for verdict in (PROBLEM, NOTE) if verdicts[verdict]]
    summary = f"{' and '.join(numbers) or 'no problem'} in {count(len(findings), 'check')}"
    return "\n".join([*lines, summary, ""])


def as_json(findings: Sequence[Finding], version: str, nproc: int, script: str | None) -> str:
    """The object that `docs/doctor.md` describes."""
    report = {
        "holdfast": version,
        "nproc_per_node": nproc,
        "script": None if script is None else escaped(script),
        "verdict": worst(findings),
        "findings": [{key: escaped(text) for key, text in asdict(each).items()} for each in findings],
    }
    return json.dumps(report, indent=2) + "\n"


def size(number: float) -> str:
    """A number of bytes: `1.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} bytes"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b, c`, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
