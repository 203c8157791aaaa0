"""Adds a filter for warnings, and a folder to the path."""

import sys
import warnings

warnings.filterwarnings("error", message="of a module")
sys.path.append("/nowhere-of-a-module")


def check() -> None:
    assert sys.path.count("/nowhere-of-a-module") == 1
    try:
        warnings.warn("of a module", stacklevel=2)
    except UserWarning:
        return
    raise AssertionError("the filter is gone")
