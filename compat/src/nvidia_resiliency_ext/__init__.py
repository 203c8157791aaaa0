"""Holdfast under the import name `nvidia_resiliency_ext`, for programs that were written for it. Not NVIDIA's package.

Every name below is an alias of the very object of Holdfast's. What always holds: importing this package loads nothing
of Holdfast, no torch and no Lightning; what is not offered raises a ModuleNotFoundError that says what to use; beside
the original distribution, or without its own subpackages, nothing can be imported. docs/drop-in.md is for users.
"""

from __future__ import annotations

from nvidia_resiliency_ext._not_offered import explain_missing_modules
from nvidia_resiliency_ext._original import refuse_a_half, refuse_beside_the_original

refuse_beside_the_original(__file__)
refuse_a_half(__file__)
explain_missing_modules()

# Clients compare it with 0.6.0; the label says whose it is. The same as in the metadata beside this package.
__version__ = "0.6.0+holdfast"

__all__ = ["__version__"]
