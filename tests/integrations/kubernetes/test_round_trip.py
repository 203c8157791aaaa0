"""The manifests against the models that `pip install kubeflow` brings: every field that is written is known.

The models drop an unknown field without a word, so what comes out is compared with what went in. Runs in an environment
of its own: `make test-engines`. Does not cover: a cluster; these manifests were never run on one.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

models = pytest.importorskip("kubeflow_trainer_api.models", reason="`make test-engines` has it")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
MODELS = {
    "jobset.yaml": "JobsetV1alpha2JobSet",
    "runtime.yaml": "TrainerV1alpha1ClusterTrainingRuntime",
    "trainjob.yaml": "TrainerV1alpha1TrainJob",
}


def through(name: str, manifest: dict[str, Any]) -> Any:
    return getattr(models, MODELS[name]).from_dict(manifest).to_dict()


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_dropped(name: str) -> None:
    manifest = yaml.safe_load((EXAMPLES / name).read_text())
    assert through(name, copy.deepcopy(manifest)) == manifest


def test_a_field_that_nobody_knows_would_be_seen() -> None:
    """A test of this test, with the field that Trainer 2.2 gave up for `runtimePatches`."""
    manifest = yaml.safe_load((EXAMPLES / "trainjob.yaml").read_text())
    manifest["spec"]["podTemplateOverrides"] = []
    assert through("trainjob.yaml", copy.deepcopy(manifest)) != manifest


def test_all_manifests_are_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(MODELS)
