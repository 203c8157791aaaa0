"""Sets a timer when it is imported; a forked child has none."""

import signal

signal.setitimer(signal.ITIMER_REAL, 900)


def check() -> None:
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
