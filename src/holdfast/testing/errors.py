"""What the test kit raises: one error for a fault that cannot be understood, one that *is* a fault.

HoldfastError
 └─ FaultSpecError (also ValueError)   a fault description is wrong; nothing was armed
RuntimeError
 └─ InjectedFault                      the fault `exception`, as the training loop sees it
"""

from __future__ import annotations

from holdfast.fault_tolerance.errors import HoldfastError

__all__ = ["FaultSpecError", "InjectedFault"]


class FaultSpecError(HoldfastError, ValueError):
    """A fault description is wrong. The text names the description, the value and what is allowed."""


class InjectedFault(RuntimeError):
    """Raised in the training loop by the fault `exception`.

    Deliberately no `HoldfastError`: to the program it must look like a bug of its own.
    """
