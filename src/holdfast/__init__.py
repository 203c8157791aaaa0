"""Holdfast keeps distributed PyTorch training running.

Importing this package is free: it imports nothing at all, no torch, and `holdfast.Loop`, for plain training loops, when
it is first asked for. The public packages are `holdfast.fault_tolerance` (what training code and `ft_launcher` use),
`holdfast.straggler` (which rank is slow) and `holdfast.testing` (faults to inject).
"""

TYPE_CHECKING = False  # typing's own costs 15 ms, in each process of a job
if TYPE_CHECKING:
    from .integrations.loop import Loop as Loop

__version__ = "0.1.0"

__all__ = ["Loop", "__version__"]


def __getattr__(name: str) -> object:
    if name != "Loop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .integrations.loop import Loop

    return Loop


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
