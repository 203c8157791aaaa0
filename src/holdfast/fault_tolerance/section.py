"""A section as a context manager: closed however its body ends."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import RankMonitorClient


class Section:
    """`with client.section(name): ...`; may be entered again and again, not twice at once."""

    __slots__ = ("_client", "_name")

    def __init__(self, client: RankMonitorClient, name: str) -> None:
        self._client = client
        self._name = name

    def __enter__(self) -> None:
        self._client.start_section(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not end_section(): the body may have ended all sections, or supervision as a whole, and that is no error.
        if self._client.is_initialized:
            self._client._close(self._name)
