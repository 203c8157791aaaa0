"""The tree of errors that holdfast raises on purpose.

    HoldfastError
     ├─ RankMonitorClientError   the training program misused the client (the only thing a client call ever raises)
     │   └─ NotReady             timeouts cannot be learned yet
     ├─ BoardError               a board cannot be read: what was found, what was expected
     │   └─ BoardUnavailable     a board cannot be made here (tmpfs full): the rank runs unsupervised
     ├─ ConfigError              a setting or an option of the command line is wrong (also a ``ValueError``)
     │   └─ RunDirError          the run directory cannot be used (:mod:`holdfast.journal.run_dir`)
     ├─ UnsupportedTorch         the installed torch is too old (also an ``ImportError``)
     ├─ JournalUnreadable        a run directory cannot be read (:mod:`holdfast.journal.reader`)
     └─ FaultSpecError           a fault to inject is not one (:mod:`holdfast.testing`; also a ``ValueError``)

Every message is for a person: who, what, how that is known, and what to do. An error that a person cannot act on
is a defect, not a member of this tree.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Any error that holdfast raises on purpose."""


class RankMonitorClientError(HoldfastError):
    """The training program used ``RankMonitorClient`` in a way that has no meaning."""


class NotReady(RankMonitorClientError):
    """There is not enough data to learn timeouts."""

    def __init__(self, missing: list[str]) -> None:
        super().__init__(
            f"not enough data to learn timeouts: {'; '.join(missing)}. "
            "Call this later, or with skip_if_not_ready=True to leave the timeouts as they are"
        )


class BoardError(HoldfastError):
    """A board is not what its path promised: wrong magic, version or size, unreadable, or held by another process."""


class BoardUnavailable(BoardError):
    """A board cannot be allocated; the rank is started without one."""


class UnsupportedTorch(HoldfastError, ImportError):
    """The installed torch is too old; raised by the import of what needs a newer one."""


class ConfigError(HoldfastError, ValueError):
    """A setting is wrong. The message is one line: where it was set, the key, the value and what is allowed."""
