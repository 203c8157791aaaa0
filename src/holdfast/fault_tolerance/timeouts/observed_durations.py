"""Observed durations: between heartbeats, in sections, outside of sections, between counted steps.

`Intervals` collects those of one rank: the board's writer calls it inside its lock, with times and lengths in
nanoseconds of the monotonic clock. `longest_over_ranks` agrees on them over a job. `step_times` are those that the
launcher reads from the boards of ranks that do not use the client.

Does not cover: the start of a rank that has sent no heartbeat yet.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..board import Limits, Snapshot
from ..board.values import SECOND as SECOND
from ..board.values import Observer
from ..errors import NotReady
from .learned_timeouts import INITIAL, OUT_OF_SECTION, SUBSEQUENT

if TYPE_CHECKING:
    import torch

RUNNING = "\0"
"""Stands before the name of something that has not ended yet: its age."""
_ABSENT = -1.0


class Intervals(Observer):
    """The longest that one rank has observed since the client was made, also over several periods of supervision."""

    __slots__ = ("_first_heartbeat", "_longest", "_longest_gap", "_longest_out")

    def __init__(self) -> None:
        self._first_heartbeat = 0  # when; 0 = none yet
        self._longest_gap = 0  # between two heartbeats; 0 = fewer than two
        self._longest_out = 0
        self._longest: dict[str, int] = {}

    def heartbeat(self, now_ns: int, gap_ns: int) -> None:
        if gap_ns > self._longest_gap:
            self._longest_gap = gap_ns
        if not self._first_heartbeat:
            self._first_heartbeat = now_ns

    def in_section(self, name: str, spent_ns: int) -> None:
        longest = self._longest
        if name not in longest or spent_ns > longest[name]:
            longest[name] = spent_ns

    def out_of_section(self, spent_ns: int) -> None:
        if spent_ns > self._longest_out:
            self._longest_out = spent_ns

    def heartbeats(self, started_ns: int, running_ns: int = 0) -> dict[str, float]:
        """Seconds from `started_ns` to the first heartbeat (`INITIAL`) and the longest between two (`SUBSEQUENT`);
        zero where none was seen. `running_ns` is the age of the last heartbeat, if there was one."""
        initial = max(0, self._first_heartbeat - started_ns) if self._first_heartbeat else 0
        running = {RUNNING + SUBSEQUENT: running_ns / SECOND} if running_ns else {}
        return {INITIAL: initial / SECOND, SUBSEQUENT: self._longest_gap / SECOND, **running}

    def sections(
        self, also: Iterable[str] = (), running_out_ns: int = 0, running_ns: Mapping[str, int] | None = None
    ) -> dict[str, float]:
        """The longest seconds spent in each section that was ever closed, zero for those that are named `also`; and,
        as `OUT_OF_SECTION`, outside of all sections. The running stretch counts: the end of a job may be longest.
        `running_ns` has the age of each open section."""
        opened = running_ns or {}
        seconds = dict.fromkeys((*also, *opened), 0.0)
        seconds.update({RUNNING + name: age / SECOND for name, age in opened.items()})
        seconds.update({name: spent / SECOND for name, spent in dict(self._longest).items()})
        seconds[OUT_OF_SECTION] = max(self._longest_out, running_out_ns) / SECOND
        return seconds


def longest_over_ranks(measure: Callable[[], Mapping[str, float]], group: Any = None) -> dict[str, float]:
    """For every name that any rank of `group` has, the greatest value of all, in seconds. Collective.

    First the names are gathered, as a section may be opened by one rank alone; nothing is pickled. The values that
    count are measured after all ranks have met: the wait for the last rank is no hang. The age of what still runs is a
    lower bound for what has ended before, on any rank; alone it shows no length.

    Args:
        measure: what `Intervals` gives on this rank; called twice, and of the second reading the names of the first
            count.
        group: has all ranks of the job; None is the default process group.

    Raises:
        NotReady: in one of several ranks (WORLD_SIZE) whose default process group is not, or no longer, initialised.

    Does not cover: ranks that died or do not call. As with any collective of the training, the others then wait.
    """
    distributed: Any = sys.modules.get("torch.distributed")  # loads no torch that is not loaded
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        ranks = os.environ.get("WORLD_SIZE", "1")
        if ranks != "1":
            raise NotReady(
                [f"this is one of {ranks} ranks, and the default process group is not initialised"]
            )
        return with_running(measure())
    import torch
    import torch.distributed as dist

    device = _device(group)
    names = _all_names(sorted(measure()), device, group)
    seconds = measure()  # only now: the gathering has waited for the slowest rank
    values = torch.tensor([seconds.get(name, _ABSENT) for name in names], dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    return with_running(dict(zip(names, values.tolist(), strict=True)))


def with_running(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each duration with the age of what still runs as its lower bound. What never ended on any rank stays zero: a
    section that has just been opened for the first time shows nothing yet."""
    return {
        name: max(longest, seconds.get(RUNNING + name, 0.0)) if longest > 0 else longest
        for name, longest in seconds.items()
        if not name.startswith(RUNNING)
    }


def _device(group: Any) -> torch.device:
    """Where the group's tensors must live: the CPU if any of its backends serves it, else the GPU."""
    import torch
    import torch.distributed as dist

    served = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in served or "cuda" not in served:
        return torch.device("cpu" if "cpu" in served else served[0])
    return torch.device("cuda", torch.cuda.current_device())


def _all_names(names: list[str], device: torch.device, group: Any) -> list[str]:
    import torch
    import torch.distributed as dist

    raw = json.dumps(names).encode()
    size = torch.tensor([len(raw)], dtype=torch.int64, device=device)
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
    padded = torch.frombuffer(bytearray(raw.ljust(int(size.item()))), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, padded, group=group)
    return sorted({name for each in gathered for name in json.loads(bytes(each.cpu().tolist()))})


def step_times(ended: Iterable[tuple[Snapshot, float]]) -> tuple[dict[str, float], Limits] | None:
    """The durations of counted steps on boards of one node and cycle, each given with its rank's end (monotonic
    seconds): the fields of the event `counted_steps`, and the timeouts on the boards. None where nothing was counted.

    `first` is from a rank's start to the end of its first step, `longest` from the end of one step to that of the
    next or to the rank's end: a timeout would have run in that as well. Both are the longest of any rank, in seconds;
    `steps` is the lowest number. Ranks with fewer than two steps are left out, and those with the client: it learns.
    """
    counted = [
        (board, board.identity, board.step, end)
        for board, end in ended
        if board.counted and board.identity is not None and board.step is not None and board.step > 1
    ]
    if not counted:
        return None
    first = max((board.first_step_ns - identity.started_ns) / SECOND for board, identity, _, _ in counted)
    longest = max(
        max(board.longest_step_ns / SECOND, end - board.last_heartbeat_ns / SECOND)
        for board, _, _, end in counted
    )
    steps = min(step for _, _, step, _ in counted)
    times = {"ranks": len(counted), "steps": steps, "first": round(first, 3), "longest": round(longest, 3)}
    return times, counted[0][0].limits
