"""Methods of an object (a trainer, its strategy) that are wrapped while it trains, and put back afterwards.

What always holds: a method that another program has wrapped meanwhile stays as it is; our wrapper within it then
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
        self._made: list[Patch] = []

    def wrap(self, obj: Any, name: str, around: Around) -> Patch:
        """Call `around` instead of this object's method. Raises AttributeError if there is none."""
        patch = Patch(obj, name, around)
        self._made.append(patch)
        return patch

    def undo(self) -> None:
        """Put everything back, the last first. May be called twice."""
        while self._made:
            self._made.pop().undo()


class Patch:
    """One wrapped method. `active` until it is undone."""

    def __init__(self, obj: Any, name: str, around: Around) -> None:
        self._obj, self._name, self.active = obj, name, True
        self.before = vars(obj).get(name, _MISSING)
        original = getattr(obj, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, args, kwargs) if self.active else original(*args, **kwargs)

        wrapper.holdfast_patch = self  # type: ignore[attr-defined]
        self.wrapper = wrapper
        setattr(obj, name, self.wrapper)

    def undo(self) -> None:
        """Put the method back, unless another program has wrapped it since."""
        self.active = False
        if vars(self._obj).get(self._name) is not self.wrapper:
            return
        before = self.before
        # Two of ours may go in the order in which they came: what the first has left behind goes now.
        while (patch := _made_by(before)) is not None and not patch.active:
            before = patch.before
        if before is _MISSING:
            delattr(self._obj, self._name)
        else:
            setattr(self._obj, self._name, before)


def _made_by(method: Any) -> Patch | None:
    patch = getattr(method, "holdfast_patch", None)
    # A stranger's wrapper of ours has our wrapper's attributes, too.
    return patch if isinstance(patch, Patch) and patch.wrapper is method else None
