"""Sets one variable and removes another when it is imported."""

import os

os.environ["SET_BY_A_MODULE"] = "yes"
os.environ.pop("REMOVED_BY_A_MODULE", None)


def check() -> None:
    assert os.environ["SET_BY_A_MODULE"] == "yes"
    assert "REMOVED_BY_A_MODULE" not in os.environ
