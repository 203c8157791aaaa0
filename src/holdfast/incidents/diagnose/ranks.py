"""Ranks that were started by torchrun, or by anything else that gives them RANK in their environment.

What always holds: processes are one job's only where their environments say so: the same run, the same meeting place.

Does not cover: ranks that a Python program forks itself (`torch.multiprocessing.spawn`) and tells their number later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...fault_tolerance.environment import BOARD
from ...fault_tolerance.processes import proc
from . import lookup

RANK, LOCAL_RANK = "RANK", "LOCAL_RANK"
SAME_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
OTHERS_NUMBERS = (RANK, "OMPI_COMM_WORLD_RANK", "PMI_RANK")

Environments = dict[int, dict[str, str]]


def number(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first of these variables that is a number."""
    return next((int(text) for name in names if (text := environment.get(name, "")).isdecimal()), None)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is a rank, or below one."""
    return number(environment, OTHERS_NUMBERS) is not None


def same_job(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two ranks belong together."""
    return all(one.get(name) == other.get(name) for name in SAME_JOB)


def topmost(pid: int, stats: Mapping[int, proc.Stat]) -> int:
    """The rank that this process is, or is below; 0 where it is none."""
    found, seen = 0, set()
    while pid in stats and pid not in seen and is_rank(lookup.environment(pid)):
        seen.add(pid)
        found, pid = pid, stats[pid].ppid
    return found


def below(pids: Iterable[int], stats: Mapping[int, proc.Stat]) -> Environments:
    """The ranks among these processes, without what runs below them."""
    ranks = {pid: lookup.environment(pid) for pid in pids}
    ranks = {pid: each for pid, each in ranks.items() if is_rank(each)}
    return {pid: each for pid, each in ranks.items() if stats[pid].ppid not in ranks}


def siblings(pid: int, stats: Mapping[int, proc.Stat]) -> Environments:
    """The ranks that the same process has started for the same job; this one is among them."""
    own = lookup.environment(pid)
    parent = stats[pid].ppid
    children = [each for each, found in stats.items() if found.ppid == parent and found.state not in "ZX"]
    others = {each: lookup.environment(each) for each in children if each != pid}
    return {pid: own} | {
        each: found for each, found in others.items() if is_rank(found) and same_job(own, found)
    }


def board_of(environment: Mapping[str, str]) -> str:
    """Where its board is, if it was given one."""
    return environment.get(BOARD, "")
