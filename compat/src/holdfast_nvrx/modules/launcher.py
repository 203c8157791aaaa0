"""`ft_launcher` as a module: ``python -m nvidia_resiliency_ext.fault_tolerance.launcher``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.fault_tolerance.launcher import get_args_parser as get_args_parser
elif __name__ != "__main__":
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
    __all__ += ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the job that `args` describes, and raise SystemExit unless it ends with 0; without `args`, be the command
    ft_launcher, and end this process."""
    from holdfast.fault_tolerance.launcher import main as launcher

    if args is None:
        launcher.console()
    elif code := launcher.main(args):
        raise SystemExit(code)


if __name__ == "__main__":
    main()
