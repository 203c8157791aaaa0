"""A process whose optimizer's steps are counted, as the launcher's prologue has them counted in a rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.fault_tolerance import optimizer_steps
from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE

ASKED = "HOLDFAST_OPTIMIZER_STEPS"
Arm = Callable[..., Any]


def prologue(name: str) -> Any:
    """A file of the launcher's prologue, as a rank has it: not among the imported modules."""
    spec = importlib.util.spec_from_file_location(name, f"{PROLOGUE}/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has not counted yet, and no client was in it; afterwards torch has the hooks that it had."""
    for name, value in (("_taken", False), ("_counted", None), ("_ended", None)):
        monkeypatch.setattr(optimizer_steps, name, value)
    from torch.optim import optimizer as torchs

    hooks = torchs._global_optimizer_post_hooks
    before = dict(hooks)
    yield
    for number in [number for number in hooks if number not in before]:
        del hooks[number]
    if optimizer_steps._counted is not None:
        optimizer_steps._counted.detach()


@pytest.fixture
def arm(fresh: None) -> Arm:
    """Arms this process, with `save`, as a rank whose launcher asks for steps to be counted."""

    def arm(save: Any = None) -> None:
        environment = {ASKED: "1", "OTHER": "kept"}
        prologue("optimizer_hook").arm(environment, save)
        assert environment == {"OTHER": "kept"}

    return arm
