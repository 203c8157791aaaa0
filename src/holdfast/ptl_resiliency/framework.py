"""Which Lightning this process uses: `lightning`, `pytorch_lightning`, or both at once.

They are one framework under two names, and a callback of one is none of the other's. What is loaded already decides; if
both are, our callbacks are callbacks of both. Does not cover: a program that loads the other one after our callbacks:
`lightning` is taken where neither is loaded yet and it is installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def frameworks() -> list[Any]:
    """The modules in use, loaded. Raises ImportError, with what to install, if there is none."""
    loaded = [name for name in _NAMES.values() if name in sys.modules]
    found = loaded or [name for package, name in _NAMES.items() if find_spec(package)][:1]
    if not found:
        raise ImportError(
            "holdfast.ptl_resiliency needs Lightning, and neither `lightning` nor `pytorch_lightning` is installed "
            "here: pip install lightning"
        )
    return [import_module(name) for name in found]


if TYPE_CHECKING:
    # Lightning is not installed where types are checked; the hooks that are used are checked by running them.
    class Callback:
        """A callback of Lightning."""
else:
    _bases = tuple(module.Callback for module in frameworks())
    Callback = _bases[0] if len(_bases) == 1 else type("Callback", _bases, {"__doc__": "A callback of both."})


def is_checkpoint(callback: object) -> bool:
    """Whether this is one of Lightning's checkpoint callbacks, which Lightning calls after all others."""
    return isinstance(callback, tuple(module.callbacks.Checkpoint for module in frameworks()))
