"""Keeps the rank that the environment had when it was imported."""

import os

rank = int(os.environ.get("RANK", "-1"))
local_rank = int(os.getenv("LOCAL_RANK", "-1"))


def check() -> None:
    assert str(rank) == os.environ["RANK"]
    assert str(local_rank) == os.environ["LOCAL_RANK"]
