"""Tests against the real NeMo-Run, in an environment that has it: `make test-nemo`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("nemo_run") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.slurm.conftest import accounting_cluster as accounting_cluster


@pytest.fixture(scope="module")
def nemo_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where NeMo-Run keeps experiments in this process. Its commands read stdin, which pytest forbids."""
    from nemo_run.config import get_nemorun_home, set_nemorun_home

    home, before = tmp_path_factory.mktemp("nemo"), get_nemorun_home()
    with pytest.MonkeyPatch.context() as patch, open(os.devnull) as nothing:
        patch.setattr("sys.stdin", nothing)
        set_nemorun_home(str(home))
        yield home
        set_nemorun_home(before)
