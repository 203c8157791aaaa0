"""What the manifests say, as ft_launcher and the rules for failed pods take it; and launchers with their environment.

The models of Kubernetes objects come with `pip install kubeflow`, in an environment of its own: `make test-engines`.
Does not cover: a cluster; these manifests were never run on one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.fault_tolerance.launcher.command_line.options import read
from tests.processes import Spawner, free_port, wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
INJECTED = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "train-node-0-0.train",
}
"""What Kubeflow Trainer adds to the container `node`, beside PET_MASTER_PORT."""


def manifest(name: str) -> dict[str, Any]:
    document = yaml.safe_load((EXAMPLES / name).read_text())
    assert isinstance(document, dict)
    return document


def job_set(name: str) -> Any:
    """The spec of the JobSet."""
    spec = manifest(name)["spec"]
    return spec["template"]["spec"] if name == "runtime.yaml" else spec


def job(name: str) -> Any:
    """The spec of the Kubernetes job of the nodes."""
    (replicated,) = job_set(name)["replicatedJobs"]
    return replicated["template"]["spec"]


def environ(name: str) -> dict[str, str]:
    (container,) = job(name)["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


#: Runs until it is asked to stop; its ranks then stop at the same step.
TRAINING = """
import itertools, os, signal, time
from holdfast.fault_tolerance import stop as stops  # by which the launcher sees that no torch is needed

stop = stops.StopPoint.find()
signal.signal(signal.SIGTERM, lambda number, frame: stop.notice(number))
stop.begin()
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
for step in itertools.count(1):
    time.sleep(0.05)
    if stop.passes(stops.position(step)):
        print("saved at step", step, flush=True)
        break
"""


@pytest.mark.parametrize("name", ["jobset.yaml", "runtime.yaml"])
def test_ft_launcher_takes_the_environment(name: str) -> None:
    added = {**INJECTED, "PET_MASTER_PORT": "29400"} if name == "runtime.yaml" else {}
    options = read([__file__], {**environ(name), **added})
    assert options.warnings == ()
    assert options.preempted_exit_code == 75
    assert options.resolved.config.rank_heartbeat_timeout == 300
    grace = job(name)["template"]["spec"]["terminationGracePeriodSeconds"]
    assert options.term_timeout is not None and options.term_timeout < grace


def answer(name: str, code: int, *, disrupted: bool = False) -> str:
    """What the job does with a pod that ended with this code: the first rule that matches, else it counts."""
    for rule in job(name)["podFailurePolicy"]["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
        if disrupted and rule.get("onPodConditions"):
            return str(rule["action"])
    return "counts"


@pytest.mark.parametrize("name", ["jobset.yaml", "runtime.yaml"])
def test_exit_codes_mean_what_they_mean(name: str) -> None:
    assert answer(name, 93) == answer(name, 93, disrupted=True) == "FailJob"
    assert answer(name, 75) == answer(name, 75, disrupted=True) == "Ignore"
    assert answer(name, 137, disrupted=True) == "Ignore"
    assert answer(name, 1) == answer(name, 137) == "counts"
    assert job(name)["template"]["spec"]["restartPolicy"] == "Never"  # or there may be no such rules


@pytest.mark.parametrize("name", ["jobset.yaml", "runtime.yaml"])
def test_rules_have_names_that_jobset_takes(name: str) -> None:
    """It refuses the whole set otherwise. Source: the description in `JobsetV1alpha2FailurePolicyRule`."""
    names = [rule["name"] for rule in job_set(name)["failurePolicy"]["rules"]]
    assert names and all(re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", each) for each in names)


def test_the_training_names_the_runtime_and_its_container() -> None:
    train, runtime = manifest("trainjob.yaml"), manifest("runtime.yaml")
    assert train["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert train["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    (patch,) = train["spec"]["runtimePatches"]
    (patched,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert patched["name"] == replicated["name"] == "node"
    assert patched["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == "node"


@pytest.mark.slow
def test_when_one_pod_is_evicted_both_leave_as_preempted(tmp_path: Path, spawn: Spawner) -> None:
    """Two launchers with the pods' environment; the names of pods and the number of GPUs apart."""
    (tmp_path / "train.py").write_text(TRAINING)
    here = {
        **environ("runtime.yaml"),
        **INJECTED,
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        "PET_FT_RUN_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", tmp_path / "train.py"]
    pods = [spawn(command, env={**here, "PET_NODE_RANK": str(node)}) for node in (0, 1)]
    for pod in pods:
        pod.wait_for(r"rank \d of 2")
    wait_until(lambda: {pod.out().count("of 2") for pod in pods} == {1}, what="a rank on each")
    pods[1].send_signal(15)
    assert [pod.wait() for pod in pods] == [75, 75]
    (places,) = {tuple(re.findall(r"saved at step (\d+)", pod.out())) for pod in pods}
    assert len(places) == 1


MODELS = {
    "jobset.yaml": "JobsetV1alpha2JobSet",
    "runtime.yaml": "TrainerV1alpha1ClusterTrainingRuntime",
    "trainjob.yaml": "TrainerV1alpha1TrainJob",
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_field_is_known_to_the_models(path: Path) -> None:
    """They drop an unknown field without a word, so what comes out is compared with what went in."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="`make test-engines` has it")
    model = getattr(models, MODELS[path.name])
    assert model.from_dict(manifest(path.name)).to_dict() == manifest(path.name)
    odd = manifest(path.name)
    odd["spec"]["podTemplateOverrides"] = []  # Trainer 2.2 has `runtimePatches` in its place
    assert model.from_dict(odd).to_dict() != odd
