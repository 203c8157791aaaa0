"""What a distribution adds to an environment that has torch: how many distributions, and how many bytes.

argv: its name. Prints JSON. Optional extras do not count; a requirement that torch has as well is torch's.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(name: str) -> set[str]:
    """The distribution and all that it needs here, those that are not installed left out."""
    found: set[str] = set()
    left = [name]
    while left:
        one = canonicalize_name(left.pop())
        if one in found:
            continue
        try:
            needs = metadata.requires(one) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(one)
        requirements = [Requirement(text) for text in needs]
        left += [
            each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def size(name: str) -> int:
    """Bytes of its files."""
    files = metadata.files(name) or []
    paths = [Path(str(file.locate())) for file in files if not str(file).endswith(".pyc")]
    return sum(path.stat().st_size for path in paths if path.is_file())


added = closure(sys.argv[1]) - closure("torch")
print(json.dumps({"distributions": len(added), "bytes": sum(size(each) for each in added)}))
