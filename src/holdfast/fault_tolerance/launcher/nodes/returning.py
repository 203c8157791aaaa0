"""Which nodes of the cycle before did not come back, as the job's store tells.

A node is its launcher: one that was started again has another name. Does not cover: why a node did not come back;
and a node that came and was given no place, because a spare had taken it, counts as one that did not come.
"""

from __future__ import annotations

from torch.distributed import Store


def members(notes: Store, cycle: int) -> list[str]:
    """The names of the nodes of a cycle that has begun, by their ranks."""
    present = notes.add(f"present/{cycle}", 0)
    return [name.decode() for name in notes.multi_get([f"node/{cycle}/{rank}" for rank in range(present)])]


def last_begun(notes: Store, before: int) -> int | None:
    """The newest cycle with a lower number that was not called off before its ranks could start."""
    return next((cycle for cycle in range(before - 1, -1, -1) if notes.check([f"rank_store/{cycle}"])), None)


def not_back(notes: Store, cycle: int) -> tuple[int, list[str]]:
    """The cycle before this one, and those of its nodes that take no part in this one. Some five calls, however many
    nodes there are."""
    earlier = last_begun(notes, cycle)
    if earlier is None:
        return cycle, []
    here = set(members(notes, cycle))
    return earlier, [name for name in members(notes, earlier) if name not in here]


class Silence:
    """Whose counters stand still from now on, of the nodes of the cycle before this one. One call for each node."""

    def __init__(self, notes: Store, cycle: int) -> None:
        self._notes = notes
        earlier = last_begun(notes, cycle)
        self._counters = (
            {name: self._counter(name) for name in members(notes, earlier)} if earlier is not None else {}
        )

    def _counter(self, name: str) -> int:
        return self._notes.add(f"alive/{name}", 0)

    def names(self) -> list[str]:
        """The nodes that have shown no sign of life since; a node that lives shows one each second."""
        return [name for name, counter in self._counters.items() if self._counter(name) == counter]
