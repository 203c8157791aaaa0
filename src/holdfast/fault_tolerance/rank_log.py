"""What Holdfast says inside a training process: through the logger "holdfast", each line naming who speaks.

A program that has not set up logging shows a warning's bare text, among the training's own lines; so the text itself
begins with the name.
Does not cover: the launcher and the monitor, which have a console of their own.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # Python 3.10 cannot subscript it
    _Adapter = logging.LoggerAdapter


class _Named(_Adapter):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"holdfast: {msg}", kwargs


log = _Named(logging.getLogger("holdfast"), {})
