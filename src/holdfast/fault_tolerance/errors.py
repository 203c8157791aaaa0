"""The errors that holdfast raises on purpose. Of them only `RankMonitorClientError` comes out of a call of the client.

Every message is for a person: who, what, how that is known, and what to do. An error that a person cannot act on
is a defect, and has no class here.
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
