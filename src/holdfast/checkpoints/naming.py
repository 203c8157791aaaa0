"""What the name of a checkpoint says: its step, its version, whether it is unfinished. Pure.

Steps: `step=40`, `step-00000040`, `iter_0000040`, `checkpoint-40`, `global_step40`. Versions: Lightning's `-v1` for a
second checkpoint of one name. Does not cover: epochs and losses in names; they order nothing.
"""

from __future__ import annotations

import re

_STEP = re.compile(r"(?:step|iter(?:ation)?|checkpoint)[=_-]?(\d+)", re.IGNORECASE)
_VERSION = re.compile(r"-v(\d+)(?:\.\w+)?$")
_ONLY_A_STEP = re.compile(
    r"(?:epoch[=_-]?\d+[_-])?(?:global_?)?(?:step|iter(?:ation)?|checkpoint)[=_-]?\d+(?:-v\d+)?",
    re.IGNORECASE,
)
_UNFINISHED = (".partial", ".tmp", ".temp", ".incomplete", ".part")


def step_of(name: str) -> int | None:
    """The last step that the name tells; None if it tells none."""
    found = _STEP.findall(name)
    return int(found[-1]) if found else None


def version_of(name: str) -> int:
    """0 for the first of a name."""
    found = _VERSION.search(name)
    return int(found[1]) if found else 0


def says_a_step_only(name: str) -> bool:
    """A folder of such a name is a checkpoint; `logs-step-3` may be anything."""
    return _ONLY_A_STEP.fullmatch(name) is not None


def finished(name: str) -> str:
    """The name that an unfinished one would get."""
    for end in _UNFINISHED:
        if name.lower().endswith(end):
            name = name[: -len(end)]
    return name.removeprefix(".").removeprefix("tmp-")


def is_unfinished(name: str) -> bool:
    """Whether whoever writes it has not given it its name yet."""
    return name.lower().endswith(_UNFINISHED) or name.startswith(("tmp-", ".tmp"))
