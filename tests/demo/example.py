"""The example's files as modules for the tests; they stand in a folder that is no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDER = EXAMPLES / "char_transformer"
TRAIN = FOLDER / "train.py"


def load(name: str) -> ModuleType:
    """`load("data")` is examples/char_transformer/data.py."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
