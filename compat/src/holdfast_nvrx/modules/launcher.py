"""`ft_launcher` as a module: ``python -m nvidia_resiliency_ext.fault_tolerance.launcher``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

__all__ = ["get_args_parser", "main"]


def get_args_parser() -> ArgumentParser:
    """A parser with all options of ft_launcher."""
    from holdfast.fault_tolerance.launcher import get_args_parser as parser

    return parser()


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
