"""Chooses how processes are started, which can be done once, when it is imported."""

import multiprocessing

before = multiprocessing.get_start_method(allow_none=True)
multiprocessing.set_start_method("forkserver")


def check() -> None:
    assert before is None
    assert multiprocessing.get_start_method() == "forkserver"
