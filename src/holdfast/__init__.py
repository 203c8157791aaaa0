"""Holdfast keeps distributed PyTorch training running.

Importing this package is free: it imports nothing but the standard library, and no torch. The public packages are
`holdfast.fault_tolerance` (what training code and `ft_launcher` use), `holdfast.straggler` (which rank is slow) and
`holdfast.testing` (faults to inject).
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
