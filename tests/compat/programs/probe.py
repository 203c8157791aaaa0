"""Print as JSON who answers imports of nvidia_resiliency_ext, from which file, and the version."""

import importlib
import importlib.metadata
import json
import sys
import warnings

PACKAGE = "nvidia_resiliency_ext"
MODULES = (
    "fault_tolerance.RankMonitorClient",
    "straggler.Detector",
    "attribution.straggler.Detector",
    "inprocess.Wrapper",
    "inprocess.CallWrapper",
    "checkpointing.local.ckpt_managers.local_manager.LocalCheckpointManager",
    "checkpointing.async_ckpt.core.AsyncRequest",
)


def answer(path: str) -> str:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    if found.__module__.startswith("holdfast"):
        return "Holdfast"
    return "original" if getattr(sys.modules[found.__module__], "__file__", None) else "stub"


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", RuntimeWarning)
    answers = {path.rpartition(".")[0]: answer(path) for path in MODULES}
version = importlib.metadata.version("nvidia-resiliency-ext")
said = [str(each.message) for each in caught if "ft_launcher" in str(each.message)]
print(json.dumps({"answers": answers, "version": version, "warnings": said}))
