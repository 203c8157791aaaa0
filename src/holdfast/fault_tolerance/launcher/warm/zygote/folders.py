"""Temporary folders that modules make while they are imported, as `tempfile.TemporaryDirectory` objects.

Forks of one interpreter would share the folder, and the first that ends would remove it. Of a library that is known to
ask the object for its name whenever it needs the folder, each rank gets a folder of its own under the same object; any
other library is not imported ahead.
Does not cover: folders made by other means.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

ASK_FOR_THE_NAME = {"wandb.sdk.data_types._private", "wandb.sdk.artifacts.artifact"}


def finalizers() -> int:
    """How many objects want something done at the end: a quick look, for whoever looks often."""
    return len(weakref.finalize._registry)  # type: ignore[attr-defined]


def kept() -> list[Any]:
    """The objects that remove a folder when this process ends."""
    found = []
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        owner = finalizer.peek()
        if owner and isinstance(owner[0], tempfile.TemporaryDirectory):
            found.append(owner[0])
    return found


def give_up() -> None:
    """Remove those of this process, which is the only one to have them: a zygote does not end in good order."""
    for each in kept():
        shutil.rmtree(each.name, ignore_errors=True)


def renew(objects: list[Any]) -> None:
    """Each of these gets another folder, in the same place and with the same ending."""
    for each in objects:
        _, clean, _, options = each._finalizer.peek()
        each._finalizer.detach()
        folder, name = os.path.split(each.name)
        each.name = tempfile.mkdtemp(suffix=_ending(name), dir=folder)
        each._finalizer = weakref.finalize(each, clean, each.name, **(options or {}))


def _ending(name: str) -> str:
    """What was asked for as the end of the name: `tempfile` puts a prefix and eight letters before it."""
    return name[len(tempfile.gettempprefix()) + 8 :]
