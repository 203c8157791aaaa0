"""The one error of a diagnosis: there is nothing that could be looked at. Pure."""

from __future__ import annotations

from ...fault_tolerance.errors import HoldfastError


class NotDiagnosed(HoldfastError):
    """The message is one line: what was asked for, what was found, what to do."""
