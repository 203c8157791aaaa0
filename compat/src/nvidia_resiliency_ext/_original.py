"""Whether the original distribution is in the same folder as we are: both have the same file names, so it is a mixture.

Does not cover: an original in another folder of the path, of which nothing is imported; one that has overwritten
this package's own `__init__.py`.
"""

from __future__ import annotations

import os
import re
import warnings

INSTALLER = "holdfast-nvrx"
METADATA = re.compile(r"nvidia[-_.]resiliency[-_.]ext-.*\.(dist|egg)-info", re.IGNORECASE)

MIXED = (
    "nvidia-resiliency-ext ({found}) and holdfast-nvrx are both installed in {place}, and their files are mixed. "
    "Neither is used. To have Holdfast: pip uninstall -y holdfast-nvrx holdfast nvidia-resiliency-ext, then install "
    "holdfast and holdfast-nvrx again. To have the original, install that instead"
)


def refuse_beside_the_original(package_file: str) -> None:
    """Raises ImportError if it is there. Warns as well: programs take an ImportError for "not installed", silently."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(package_file)))
    for name in _names(place):
        if (
            name.startswith("nvidia_resiliency_ext-")
            and name.endswith(".dist-info")
            and not _ours(place, name)
        ):
            text = MIXED.format(found=name, place=place)
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            raise ImportError(text, name="nvidia_resiliency_ext")


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:  # a zip file
        return []


def _ours(place: str, name: str) -> bool:
    try:
        with open(os.path.join(place, name, "INSTALLER"), encoding="utf-8") as file:
            return file.read().strip() == INSTALLER
    except OSError:
        return False
