"""Tests with the real TorchX, in an environment that has it and no NeMo-Run: `make test-engines`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torchx") is None or find_spec("nemo_run") is not None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.slurm.conftest import accounting_cluster as accounting_cluster
