"""From a process to the job that it belongs to, and that job's ranks on this node.

Asked in this order: is it, or is it below, a launcher of ours; is one launcher of ours below it; is it a rank of
another launcher, or above such ranks. Else it is looked at by itself.

What always holds: where the question has several answers, they are listed and none is taken.

Does not cover: ranks on other nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ...fault_tolerance.processes import proc
from ..gathering.local_rank import LocalRank
from ..place import Place
from . import lookup, ranks
from .errors import NotDiagnosed
from .job import Job
from .launchers import Launcher, launcher
from .others import job_of_others
from .ours import job_of_launcher

_PYTHON = ("python", "pt_main_thread", "pypy")


def job_of(pid: int) -> Job:
    """The job of this process. Raises `NotDiagnosed`."""
    looked = lookup.look(pid)
    lookup.check_permitted(looked)
    stats = proc.all_stats()
    above = [each for each in _line(looked.pid, stats) if launcher(each)]
    if above:
        return _ours(
            above[0], "" if above[0] == looked.pid else f"process {pid} ({looked.command}) belongs to "
        )
    under = proc.descendants({looked.pid}, stats) - set(_line(os.getpid(), stats))
    below = [each for each in under if launcher(each)]
    if below:
        return _ours(_one(below, looked), f"below process {pid} ({looked.command}): ")
    if top := ranks.topmost(looked.pid, stats):
        which = "is" if top == looked.pid else f"is below {top}, which is"
        return job_of_others(ranks.siblings(top, stats), stats, f"process {pid} {which} a rank; ")
    if found := ranks.below(sorted(under), stats):
        parent = _one({stats[each].ppid for each in found}, looked)
        why = "" if parent == looked.pid else f"below process {pid} ({looked.command}): "
        return job_of_others(
            {each: env for each, env in found.items() if stats[each].ppid == parent}, stats, why
        )
    return _alone(looked, stats)


def _ours(pid: int, why: str) -> Job:
    found = launcher(pid)
    if found is None:
        raise NotDiagnosed(f"ft_launcher, process {pid}, has just ended")
    owner = lookup.look(pid)
    if owner.user != os.geteuid():
        return _without_boards(found, owner, why)
    return job_of_launcher(found, why)


def _without_boards(found: Launcher, owner: lookup.Looked, why: str) -> Job:
    """A job of another user, seen by root: a board that another user can write to is not trusted."""
    stats = proc.all_stats()
    local = ranks.below(sorted(proc.descendants({found.pid}, stats)), stats)
    local = {pid: each for pid, each in local.items() if stats[pid].ppid == found.pid}
    if not local:
        raise NotDiagnosed(f"{why}ft_launcher, process {found.pid}, has no rank now")
    user = lookup.user_name(owner.user)
    job = job_of_others(local, stats, why)
    job.notes.append(
        f"Steps and sections are left out: the boards are user {user}'s. Run this as {user} to have them."
    )
    return job


def _alone(looked: lookup.Looked, stats: dict[int, proc.Stat]) -> Job:
    """One process that is no rank; the nearest Python below it where it is a shell or the like."""
    ours = set(_line(os.getpid(), stats))
    below = [pid for pid in sorted(proc.descendants({looked.pid}, stats)) if pid not in ours]
    pythons = [pid for pid in below if stats[pid].name.startswith(_PYTHON)]
    pid, title = looked.pid, f"process {looked.pid} ({looked.command}), which is no rank of a job"
    if not stats[looked.pid].name.startswith(_PYTHON):
        if pythons:
            pid = _nearest(pythons, stats)
            title = f"process {pid} ({lookup.command(pid)}), the Python below {looked.pid} ({looked.command})"
        elif looked.pid in ours:
            raise NotDiagnosed(
                f"process {looked.pid} ({looked.command}) has no Python below it but this command itself"
            )
    rank = LocalRank(0, 0, pid, stats[pid].start_time, os.uname().nodename, None, "")
    return Job(title, Place(node=rank.node, world_size=1), [rank], lookup.environment(pid))


def _nearest(pids: Iterable[int], stats: Mapping[int, proc.Stat]) -> int:
    return min(pids, key=lambda pid: (len(_line(pid, stats)), pid))


def _line(pid: int, stats: Mapping[int, proc.Stat]) -> list[int]:
    """The process, its parent, and so on."""
    found: list[int] = []
    while pid in stats and pid not in found:
        found.append(pid)
        pid = stats[pid].ppid
    return found


def _one(pids: Iterable[int], looked: lookup.Looked) -> int:
    """The only one; several are for the person to choose from."""
    found = sorted(pids)
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{pid} ({lookup.command(pid) or 'unknown'})" for pid in found[:5])
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    raise NotDiagnosed(
        f"below process {looked.pid} ({looked.command}) are {len(found)} launchers: {listed}{more}. Name one of them"
    )
