"""From a process's number, or a run directory, to the job that it belongs to, and that job's ranks on this node.

A process is asked in this order: is it, or is it below, a launcher of ours; is one launcher of ours below it; is it a
rank of another launcher (by `RANK` in its environment), or above such ranks. Else it is diagnosed by itself. Where
there are several answers they are listed and none is taken. A run directory leads to the launcher that has its journal
open: launchers are recognised by the files that they hold open, and nothing is opened in a run directory.

All of this ends by one deadline. Nothing is changed or signalled.

Does not cover: ranks on other nodes, processes of other pid namespaces, an environment that a program has changed since
its start, ranks that a Python program forks itself (`torch.multiprocessing.spawn`) and numbers later, launchers of
other users unless this is root's, and a directory that launchers reach by two names which no link connects.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...fault_tolerance.board import BoardReader
from ...fault_tolerance.board.values import DIRECTORY_PREFIX, FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, OWNER_FILE
from ...fault_tolerance.errors import BoardError, HoldfastError
from ...fault_tolerance.processes import proc
from ...in_time import TooLate, within
from ...journal.run_dir import user_name
from ..capture.context import NodeContext
from ..capture.procfs import link, names
from ..capture.rank_probe import LocalRank
from .process_table import RANK_NAMES, Environment, Processes, number, user_of

ANSWER = 1.0
"""Seconds after which a job is found or not."""

LONGEST_NUMBER = 20
"""Digits."""

KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's task flags."""

LOCAL_RANK_NAMES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
SAME_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")

_JOURNAL = re.compile(r"\.?journal-.*\.jsonl(\.lock)?")
_PYTHON = ("python", "pt_main_thread", "pypy")


class DiagnoseError(HoldfastError):
    """There is nothing to diagnose. The message is one line: what was asked for, what was found, what to do."""


@dataclass
class Job:
    """The ranks of one job on this node. `title` names it, for a person."""

    title: str
    place: NodeContext
    ranks: list[LocalRank]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of one of its ranks: what in it is secret is not written."""
    notes: list[str] = field(default_factory=list)
    run_dir: str = ""
    """Where its launcher has its journal; empty where that is not known."""

    def close(self) -> None:
        """Give the boards back."""
        for rank in self.ranks:
            if rank.board is not None:
                rank.board.close()


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher that runs: the folder of its boards, and the folders of its journal."""

    pid: int
    boards: str
    run_dirs: tuple[str, ...]


def find_job(asked: str) -> Job:
    """The job that a person means with a process's number, or a run directory. Raises `DiagnoseError`."""
    text = asked.strip()
    until = time.monotonic() + ANSWER
    if not text:
        raise DiagnoseError("the name is empty. Name a process by its number, or a run directory")
    if text.startswith("-") and text[1:].isdecimal():
        raise DiagnoseError(f"{text} is no process: numbers of processes are positive")
    if not (text.isdecimal() and text.isascii()):
        return _job_in(asked, until)
    if len(text) > LONGEST_NUMBER:
        raise DiagnoseError(f"{text[:LONGEST_NUMBER]}… is larger than the number of any process")
    return _job_of(int(text), until)


# -- which job -------------------------------------------------------------------------------------------------


def _job_of(asked: int, until: float) -> Job:
    """The job of this process, or of the one that has a thread with this number."""
    pid = int(proc.table(f"/proc/{asked}/status").get("Tgid", 0)) if 0 < asked < 1 << 31 else 0
    processes = Processes(until)
    _refuse(asked, pid, processes)
    name = f"process {asked} ({processes.command(pid)})"
    above = [found for each in processes.line(pid) if (found := _launcher(each))]
    if above:
        return _job_of_launcher(above[0], processes, "" if above[0].pid == pid else f"{name} belongs to ")
    below = processes.below(pid)
    launchers = {each: found for each in below if (found := _launcher(each))}
    if launchers:
        return _job_of_launcher(launchers[_one(launchers, name, processes)], processes, f"below {name}: ")
    line = processes.line(pid)
    ranks_above = processes.ranks(line)
    parents = zip(line, [*line[1:], 0], strict=True)
    top = next((each for each, parent in parents if parent not in ranks_above), pid)
    if pid in ranks_above:
        which = "is" if top == pid else f"is below {top}, which is"
        children = [each.pid for each in processes.stats.values() if each.ppid == processes.stats[top].ppid]
        running = processes.ranks(each for each in children if processes.stats[each].is_running)
        own = ranks_above[top]
        job = [own.get(key) for key in SAME_JOB]
        local = {each: env for each, env in running.items() if [env.get(key) for key in SAME_JOB] == job}
        return _job_of_others({top: own} | local, processes, f"process {asked} {which} a rank; ")
    ranks = processes.ranks(below)
    ranks = {each: env for each, env in ranks.items() if processes.stats[each].ppid not in ranks}
    if ranks:
        parent = _one({processes.stats[each].ppid for each in ranks}, name, processes)
        local = {each: env for each, env in ranks.items() if processes.stats[each].ppid == parent}
        return _job_of_others(local, processes, "" if parent == pid else f"below {name}: ")
    return _alone(pid, name, processes)


def _refuse(asked: int, pid: int, processes: Processes) -> None:
    """Raises `DiagnoseError` for what is no process, has ended, or is another user's."""
    found = processes.stats.get(pid)
    user = user_of(pid) if found else None
    if found is None or user is None:
        if pid:
            raise DiagnoseError(f"process {asked} has just ended")
        hidden = "" if os.geteuid() == 0 else ", or it is hidden from this user"
        raise DiagnoseError(f"there is no process {asked} on node {os.uname().nodename}{hidden}")
    if found.flags & KERNEL_THREAD:
        raise DiagnoseError(f"process {asked} ({found.name}) is a thread of the kernel, and no program")
    if pid == os.getpid():
        raise DiagnoseError(f"process {asked} is this command itself. Name a process of the job")
    if not found.is_running and found.threads <= 1:
        parent = processes.stats.get(found.ppid)
        of = f"process {found.ppid} ({parent.name})" if parent else f"process {found.ppid}"
        raise DiagnoseError(
            f"process {asked} ({found.name}) has ended, and {of} has not collected it: nothing of it is left. "
            f"Its job may be found by that one: holdfast diagnose {found.ppid}"
        )
    if os.geteuid() not in (0, user):
        owner = user_name(user)
        raise DiagnoseError(
            f"process {pid} ({processes.command(pid)}) belongs to user {owner}, and this is "
            f"{user_name(os.geteuid())}: stacks and boards of a process are for its own user and for root. "
            f"Run this as {f'{owner} or as root' if user else 'root'}"
        )


def _one(pids: Iterable[int], name: str, processes: Processes) -> int:
    """The only one; several are for the person to choose from."""
    found = sorted(pids)
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{pid} ({processes.command(pid)})" for pid in found[:5])
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    raise DiagnoseError(f"below {name} are {len(found)} launchers: {listed}{more}. Name one of them")


def _alone(pid: int, name: str, processes: Processes) -> Job:
    """One process that is no rank; the nearest Python below it where it is a shell or the like."""
    title, stats = f"{name}, which is no rank of a job", processes.stats
    if not stats[pid].name.startswith(_PYTHON):
        pythons = [each for each in processes.below(pid) if stats[each].name.startswith(_PYTHON)]
        if pythons:
            python = min(pythons, key=lambda each: (len(processes.line(each)), each))
            title = f"process {python} ({processes.command(python)}), the Python below {name.removeprefix('process ')}"
            pid = python
        elif pid in processes.line(os.getpid()):
            raise DiagnoseError(f"{name} has no Python below it but this command itself")
    rank = LocalRank(0, 0, pid, stats[pid].start_time, os.uname().nodename, None, "")
    return Job(title, NodeContext(node=rank.node, world_size=1), [rank], processes.environments([pid])[pid])


def _how_many(local: int, place: NodeContext) -> str:
    """`2 ranks of 8 on node gpu-12`."""
    ranks_here = f"{local} rank{'s' if local > 1 else ''}"
    if place.nodes > 1:
        return f"{ranks_here} of {place.world_size} on node {place.node}; those of other nodes are not seen from here"
    return f"{ranks_here} on node {place.node}"


# -- a launcher of ours ----------------------------------------------------------------------------------------


def _launcher(pid: int) -> Launcher | None:
    """The launcher with this pid, None where that is none. The kernel's list of descriptors is read; none is opened."""
    files = [link(f"/proc/{pid}/fd/{name}") for name in names(f"/proc/{pid}/fd")]
    boards = [os.path.dirname(path) for path in files if os.path.basename(path) == OWNER_FILE]
    boards = [folder for folder in boards if os.path.basename(folder).startswith(DIRECTORY_PREFIX)]
    if not boards:
        return None
    journals = {os.path.dirname(path) for path in files if _JOURNAL.fullmatch(os.path.basename(path))}
    return Launcher(pid, boards[0], tuple(sorted(journals)))


def _job_of_launcher(found: Launcher, processes: Processes, why: str) -> Job:
    """Its ranks, by its boards. Raises `DiagnoseError` where it has none now."""
    user = user_of(found.pid)
    if user not in (None, os.geteuid()):
        return _without_boards(found.pid, user_name(user or 0), processes, why)
    while True:
        cycles = [name for name in names(found.boards) if re.fullmatch(r"cycle-\d+", name)]
        newest = max(cycles, key=lambda name: int(name.partition("-")[2]), default="")
        folder = os.path.join(found.boards, newest) if newest else ""
        local, notes = _on_boards(folder)
        if local:
            break
        if time.monotonic() > processes.until:
            raise DiagnoseError(
                f"{why}ft_launcher, process {found.pid}, has no rank now: it is between two cycles, waits for other "
                "nodes, or its ranks have ended. Ask again, or see holdfast incidents"
            )
        time.sleep(0.05)
    place = NodeContext.read(folder)
    if not place.node:
        place = NodeContext(os.uname().nodename, cycle=int(newest.partition("-")[2]), world_size=len(local))
    local = [replace(rank, node=place.node) for rank in local]
    title = f"{why}ft_launcher, process {found.pid}, cycle {place.cycle}, {_how_many(len(local), place)}"
    environment = processes.environments([local[0].pid])[local[0].pid]
    return Job(title, place, local, environment, notes, found.run_dirs[0] if found.run_dirs else "")


def _on_boards(folder: str) -> tuple[list[LocalRank], list[str]]:
    local, notes = [], []
    for name in sorted(names(folder)) if folder else ():
        if not name.endswith(".board"):
            continue
        path = os.path.join(folder, name)
        try:
            reader = BoardReader(path)
        except (BoardError, OSError) as error:
            notes.append(f"A rank is left out: {error}.")
            continue
        who = reader.snapshot().identity
        if who is None:
            reader.close()
            notes.append(f"Local rank {name.removesuffix('.board')} has not been started yet.")
        else:
            prefix = path.removesuffix(".board")
            local.append(LocalRank(who.rank, who.local_rank, who.pid, who.start_time, "", reader, prefix))
    return sorted(local, key=lambda rank: rank.rank), notes


def _without_boards(pid: int, user: str, processes: Processes, why: str) -> Job:
    """A job of another user, seen by root: a board that another user can write to is not trusted."""
    children = [each for each in processes.below(pid) if processes.stats[each].ppid == pid]
    local = processes.ranks(children)
    if not local:
        raise DiagnoseError(f"{why}ft_launcher, process {pid}, has no rank now")
    job = _job_of_others(local, processes, why)
    job.notes.append(
        f"Steps and sections are left out: the boards are user {user}'s. Run this as {user} to have them."
    )
    return job


# -- ranks of other launchers ----------------------------------------------------------------------------------


def _job_of_others(local: dict[int, Environment], processes: Processes, why: str) -> Job:
    """Ranks of another launcher, or of none, by their environments."""
    first = min(local, key=lambda pid: number(local[pid], RANK_NAMES) or 0)
    own = local[first]
    place = NodeContext(
        node=os.uname().nodename,
        node_rank=number(own, ["GROUP_RANK"]) or 0,
        nodes=number(own, ["GROUP_WORLD_SIZE"]) or 1,
        world_size=number(own, ["WORLD_SIZE"]) or len(local),
        run_id=own.get("TORCHELASTIC_RUN_ID", ""),
        cycle=number(own, ["TORCHELASTIC_RESTART_COUNT"]) or 0,
    )
    found = []
    for pid, each in local.items():
        rank = number(each, RANK_NAMES) or 0
        local_rank = number(each, LOCAL_RANK_NAMES)
        board, prefix = _own_board(each.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, ""), pid, processes)
        local_rank, start = rank if local_rank is None else local_rank, processes.stats[pid].start_time
        found.append(LocalRank(rank, local_rank, pid, start, place.node, board, prefix))
    parent = processes.stats[first].ppid
    title = f"{why}{_how_many(len(found), place)}, started by process {parent} ({processes.command(parent)})"
    return Job(title, place, sorted(found, key=lambda rank: (rank.rank, rank.pid)), own)


def _own_board(path: str, pid: int, processes: Processes) -> tuple[BoardReader | None, str]:
    """The rank's board where it was given one that is its own now (`RankMonitorServer`)."""
    if not path:
        return None, ""
    real = os.path.realpath(path)
    try:
        reader = BoardReader(real)
    except (BoardError, OSError):
        return None, ""
    who = reader.snapshot().identity
    if who and who.pid in {pid, *processes.below(pid)}:
        return reader, real.removesuffix(".board")
    reader.close()
    return None, ""


# -- a run directory -------------------------------------------------------------------------------------------


def _job_in(run_dir: str, until: float) -> Job:
    """The job of the launcher that works in this directory. Raises `DiagnoseError`."""
    processes, place = Processes(until), os.path.abspath(run_dir)
    with suppress(TooLate):  # a launcher that runs in it is found by its name all the same
        place = within(ANSWER / 2, lambda: os.path.realpath(run_dir))
    every = [found for pid in sorted(processes.stats) if (found := _launcher(pid))]
    working = [each for each in every if place in each.run_dirs]
    concurrent = [each for each in every if any(os.path.dirname(path) == place for path in each.run_dirs)]
    if len(working) == 1:
        job = _job_of_launcher(working[0], processes, "")
        job.notes += [f"Another job works next to it: holdfast diagnose {each.pid}." for each in concurrent]
        return job
    if several := working or concurrent:
        listed = "; ".join(f"{each.pid} ({processes.command(each.pid)})" for each in several)
        raise DiagnoseError(
            f"{run_dir}: {len(several)} launchers are at work there: {listed}. Name one by its number"
        )
    try:
        why = within(ANSWER, lambda: _why_none(place))
    except TooLate:
        why = f"its filesystem has not answered for {ANSWER:g} s, and no launcher of this node works there"
    raise DiagnoseError(f"{run_dir}: {why}")


def _why_none(place: str) -> str:
    from ...journal.reader import holds_journal, runs_in

    if not os.path.lexists(place):
        return "there is no such directory, and no process of this number"
    if not os.path.isdir(place):
        return "is no directory. Name a process, or the run directory of a job"
    if not os.access(place, os.R_OK | os.X_OK):
        return f"{os.strerror(errno.EACCES)}: run it as the job's user, or as root"
    if not holds_journal(place):
        inside = [run.path for run in runs_in([place])][:3]
        of_them = f" It holds those of {', '.join(inside)}: name one of them." if inside else ""
        return f"is no job's run directory: there is no journal in it.{of_them}"
    return (
        f"no launcher works there now on this node ({os.uname().nodename}): run it on a node of the job, "
        f"or see holdfast incidents {shlex.quote(place)}"
    )
