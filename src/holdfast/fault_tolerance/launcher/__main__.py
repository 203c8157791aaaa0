"""``python -m holdfast.fault_tolerance.launcher``."""

from .main import console

console()
