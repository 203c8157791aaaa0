"""Its handlers for forks raise: Python reports it on standard error, and continues."""

import os


def _raise() -> None:
    raise RuntimeError("this module is not made for forks")


os.register_at_fork(before=_raise, after_in_parent=_raise, after_in_child=_raise)


def check() -> None:
    pass
