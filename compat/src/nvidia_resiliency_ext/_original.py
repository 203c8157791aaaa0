"""Whether the original distribution is in the same folder as we are: both have the same file names, so it is a mixture.
And whether it has been: removing the original takes the files that both have.

Does not cover: an original in another folder of the path, of which nothing is imported; one that has overwritten
this package's own `__init__.py`.
"""

from __future__ import annotations

import os
import warnings

INSTALLER = "holdfast-nvrx"

AGAIN = (
    "To have Holdfast: pip uninstall -y holdfast-nvrx holdfast nvidia-resiliency-ext, then install holdfast and "
    "holdfast-nvrx again. To have the original, install that instead"
)
MIXED = (
    "nvidia-resiliency-ext ({found}) and holdfast-nvrx are both installed in {place}, and their files are mixed. "
    "Neither is used. " + AGAIN
)
HALF = (
    "nvidia_resiliency_ext of holdfast-nvrx in {place} is a half: {missing} gone, as after removing only the "
    "original, nvidia-resiliency-ext, from a mixture of both. It is not used. " + AGAIN
)

SUBPACKAGES = ("attribution", "fault_tolerance", "ptl_resiliency", "shared_utils", "straggler")


def refuse_beside_the_original(package_file: str) -> None:
    """Raises ImportError if it is there. Warns as well: programs take an ImportError for "not installed", silently."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(package_file)))
    for name in _names(place):
        if _is_metadata(name) and not _ours(place, name):
            raise _said(MIXED.format(found=name, place=place))


def refuse_a_half(package_file: str) -> None:
    """Raises ImportError, and warns, if a subpackage is gone."""
    package, own = os.path.split(os.path.abspath(package_file))
    if not os.path.isfile(package_file):  # a zip file
        return
    missing = [name for name in SUBPACKAGES if not os.path.isfile(os.path.join(package, name, own))]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise _said(HALF.format(place=os.path.dirname(package), missing=f"{', '.join(missing)} {are}"))


def _said(text: str) -> ImportError:
    warnings.warn(text, RuntimeWarning, stacklevel=4)
    return ImportError(text, name="nvidia_resiliency_ext")


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:  # a zip file
        return []


def _is_metadata(name: str) -> bool:
    # Older tools wrote the name as the project spells it. (No `re`: it would be most of what the import costs.)
    plain = name.lower().replace("-", "_").replace(".", "_")
    return plain.startswith("nvidia_resiliency_ext_") and name.endswith((".dist-info", ".egg-info"))


def _ours(place: str, name: str) -> bool:
    try:
        with open(os.path.join(place, name, "INSTALLER"), encoding="utf-8") as file:
            return file.read().strip() == INSTALLER
    except OSError:
        return False
