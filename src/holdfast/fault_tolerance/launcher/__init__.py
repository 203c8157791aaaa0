"""``ft_launcher``: command line -> agent -> ranks; restarts, signals, exit codes. A drop-in for ``torchrun``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .command_line.args_parser import get_args_parser as get_args_parser

__all__ = ["get_args_parser"]

__getattr__, __dir__ = names(__name__, {"get_args_parser": "command_line.args_parser"})
