"""The Lightning examples of the documents that Holdfast follows, as they stand there, and how their `...` is filled in.

The sources: (1) the overview of the NVIDIA Resiliency Extension with its Lightning callbacks, (2) its page on
Lightning integration and auto-resume, (3) the resiliency features of NeMo 2.0, (5) the usage guide of straggler
detection. Where white space was lost in a source, it is put back. `filled_in` changes only what the documents leave
open, the import roots, and the one argument that today's Lightning does not have.
"""

from __future__ import annotations

# (1): the sections on the fault tolerance callback and on the straggler callback
FAULT_TOLERANCE = """
fault_tol_cb = FaultToleranceCallback(
    autoresume=True,
    calculate_timeouts=True,
    logger_name="test_logger",
    exp_dir=tmp_path,
)
trainer = pl.Trainer(
    ...
    callbacks=[..., fault_tol_cb],
)
"""

STRAGGLERS = """
straggler_cb_args = dict(
    report_time_interval=300.0,
    calc_relative_gpu_perf=True,
    calc_individual_gpu_perf=True,
    num_gpu_perf_scores_to_log=3,
    gpu_relative_perf_threshold=0.7,
    gpu_individual_perf_threshold=0.7,
    stop_if_detected=False,
    logger_name="test_logger",
)
straggler_det_cb = StragglerDetectionCallback(**cb_args)
trainer = pl.Trainer(
    ...
    callbacks=[..., straggler_det_cb],
)
"""

# (2)
WITH_RESUME = """
from nvidia_resiliency_ext.ptl_resiliency import FaultToleranceCallback
fault_tol_cb = FaultToleranceCallback(
    autoresume=True,
    calculate_timeouts=True,
    logger_name="test_logger",
    exp_dir=tmp_path,
)
trainer = pl.Trainer(
    ...
    callbacks=[..., fault_tol_cb],
    resume_from_checkpoint=True,
)
"""

# (3)
NEMO_STRAGGLERS = """
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.recipes.callbacks import straggler_det_callback

trainer = nl.Trainer()
straggler_cb = straggler_det_callback()
trainer.callbacks.append(straggler_cb)
"""

NEMO_PREEMPTION = """
from nemo import lightning as nl
from nemo.collections import llm

from nemo.lightning.pytorch.callbacks import PreemptionCallback

trainer = nl.Trainer()
trainer.callbacks.append(PreemptionCallback())
"""

# (5)
GUIDE_STRAGGLERS = """
from nvidia_resiliency_ext.ptl_resiliency import StragglerDetectionCallback
straggler_cb_args = dict(
    report_time_interval=300.0,
    calc_relative_gpu_perf=True,
    calc_individual_gpu_perf=True,
    num_gpu_perf_scores_to_log=3,
    gpu_relative_perf_threshold=0.7,
    gpu_individual_perf_threshold=0.7,
    stop_if_detected=False,
    logger_name="test_logger",
)
straggler_det_cb = StragglerDetectionCallback(**straggler_cb_args)
trainer = pl.Trainer(
    ...
    callbacks=[..., straggler_det_cb],
)
"""

ROOTS = {
    "from nvidia_resiliency_ext.ptl_resiliency import": "from holdfast.ptl_resiliency import",
    "from nemo import lightning as nl": "import lightning.pytorch as nl",
    "from nemo.collections import llm\n": "",
    "from nemo.collections.llm.recipes.callbacks import": "from holdfast.ptl_resiliency.recipes import",
    "from nemo.lightning.pytorch.callbacks import": "from holdfast.ptl_resiliency import",
}

LEFT_OPEN = {
    "    ...\n": "    **trainer_arguments,\n",
    "callbacks=[..., ": "callbacks=[*other_callbacks, ",
    # Gone from Lightning 2: `trainer.fit(ckpt_path="last")` says it today.
    "    resume_from_checkpoint=True,\n": "",
    # The name under which document 1 does not define what it defines three lines above.
    "(**cb_args)": "(**straggler_cb_args)",
}

# What documents 1 and 5 call `num_gpu_perf_scores_to_log`, NeMo's and later texts call `..._to_print`.
NUMBERS = ("num_gpu_perf_scores_to_log=3", "num_gpu_perf_scores_to_log=0", "num_gpu_perf_scores_to_print=5")


def filled_in(snippet: str) -> str:
    """The example as a program can run it, given `pl`, `tmp_path`, `trainer_arguments` and `other_callbacks`."""
    for old, new in (ROOTS | LEFT_OPEN).items():
        snippet = snippet.replace(old, new)
    return snippet
