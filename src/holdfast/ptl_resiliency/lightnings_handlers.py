"""Lightning's own handler of the signals that ask a training to stop, kept out of force.

It runs a collective, wherever in the step the rank is; two ranks then wait for each other. What always holds: while a
notice is listened for, that handler is never in force. Does not cover: what listens instead (`notices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.patches import Patches


def keep_lightning_off(
    connector: Any, signals: set[int], patches: Patches, then: Callable[[], object] = lambda: None
) -> None:
    """Lightning registers its handlers just before it runs, and puts others' back when it ends: not for these signals.

    `then` is called when it has registered. `connector` is the trainer's signal connector, or None with a Lightning
    that has no such thing; then its handler is in force from there to the next `install`.
    """
    if not callable(getattr(connector, "register_signal_handlers", None)):
        return

    def register(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meanwhile = Patches()
        if callable(getattr(connector, "_register_signal", None)):
            meanwhile.wrap(connector, "_register_signal", others)
        try:
            return original(*args, **kwargs)
        finally:
            meanwhile.undo()
            remembered = getattr(connector, "_original_handlers", None)
            if isinstance(remembered, dict):
                for number in signals:
                    remembered.pop(number, None)
            then()

    def others(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if args and args[0] in signals else original(*args, **kwargs)

    patches.wrap(connector, "register_signal_handlers", register)
