"""What a torch that is newer than the tested ones adds to a table of ours: one warning that names it, no failure."""

from __future__ import annotations

import warnings

import torch

from holdfast.lazy import NEWEST_TORCH, release


def accept_additions(what: str, added: set[str]) -> set[str]:
    """`added` itself, with a warning, where torch is newer than `NEWEST_TORCH`; else it has to be empty."""
    if added and release(torch.__version__) > NEWEST_TORCH:
        warnings.warn(f"torch {torch.__version__} has new {what}: {', '.join(sorted(added))}", stacklevel=2)
    else:
        assert not added, f"new {what}"
    return added
