"""Who comes first at a restart: the nodes that trained until now, then the spares.

Does not cover: a launcher that was only just started. Nobody knows it as a spare, and it may be one that comes back.
"""

from __future__ import annotations

from torch.distributed import Store

from .records import Record

MOMENT = 0.5  # seconds: a node counts itself just before torch's rendezvous does


class Turn:
    """When it is a spare's turn to take part in the cycle of `record`, which has so many places.

    `now` is in monotonic seconds, here as below; those who come first are waited for until `until` at most.
    """

    def __init__(self, record: Record, places: int, until: float) -> None:
        self._record = record
        self._for_all_who_come_back = places <= record.back
        self._until = until
        self._all_here: float | None = None

    def has_come(self, notes: Store, now: float) -> bool:
        """Whether nobody has to be let pass any more, as far as the job's store tells. Asks it three times at most."""
        record = self._record
        if not record.back or now >= self._until:
            return True
        if notes.check([f"rank_store/{record.cycle}"]) or notes.check([f"cycle/{record.cycle + 1}"]):
            return True  # it began, or it never will
        if self._for_all_who_come_back or notes.add(f"joined/{record.cycle}", 0) < record.back:
            return False
        self._all_here = now if self._all_here is None else self._all_here
        return now - self._all_here >= MOMENT
