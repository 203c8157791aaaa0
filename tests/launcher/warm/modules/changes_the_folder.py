"""Changes the working directory when it is imported."""

import os

before = os.getcwd()
os.chdir("/")


def check() -> None:
    assert before == os.environ["STARTED_IN"]
    assert os.getcwd() == "/"
    os.chdir(before)
