"""Methods of a trainer's strategy that are wrapped while it trains, and put back afterwards.

What always holds: a method that somebody else has wrapped meanwhile stays as they made it; our wrapper within it then
only passes calls on. Does not cover: objects whose attributes cannot be set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""What is done instead of a call: it gets the original, and its arguments."""
_MISSING = object()


class Patches:
    """The methods that are wrapped now."""

    def __init__(self) -> None:
        self._made: list[_Patch] = []

    def wrap(self, obj: Any, name: str, around: Around) -> None:
        """Call `around` instead of this object's method. Raises AttributeError if there is none."""
        self._made.append(_Patch(obj, name, around))

    def undo(self) -> None:
        """Put everything back, the last first. May be called twice."""
        while self._made:
            self._made.pop().undo()


class _Patch:
    def __init__(self, obj: Any, name: str, around: Around) -> None:
        self._obj, self._name, self._active = obj, name, True
        self._before = vars(obj).get(name, _MISSING)
        original = getattr(obj, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                return around(original, args, kwargs)
            return original(*args, **kwargs)

        self._wrapper = wrapper
        setattr(obj, name, wrapper)

    def undo(self) -> None:
        self._active = False
        if vars(self._obj).get(self._name) is not self._wrapper:
            return
        if self._before is _MISSING:
            delattr(self._obj, self._name)
        else:
            setattr(self._obj, self._name, self._before)
