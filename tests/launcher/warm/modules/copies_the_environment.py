"""Keeps a copy of the whole environment from its import on."""

import os

kept = dict(os.environ)


def check() -> None:
    assert kept["RANK"] == os.environ["RANK"]
    assert kept["TORCHELASTIC_RESTART_COUNT"] == os.environ["TORCHELASTIC_RESTART_COUNT"]
    assert kept == {name: os.environ[name] for name in kept}
