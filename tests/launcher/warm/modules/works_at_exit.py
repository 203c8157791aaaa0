"""Has something to say at the end."""

import atexit
import os


def _say() -> None:
    place = f"rank {os.environ.get('RANK')} cycle {os.environ.get('TORCHELASTIC_RESTART_COUNT')}"
    os.write(1, f"{place} works_at_exit\n".encode())


atexit.register(_say)


def check() -> None:
    pass
