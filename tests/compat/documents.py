"""The straggler guide's examples as they stand there (document 5), and how their `...` is filled in.

The Lightning examples are in tests/ptl_resiliency/documents.py. Where white space was lost in the source, it is put
back. Here nothing of the imports is changed: the second name is what they import.
"""

from __future__ import annotations

from tests.ptl_resiliency import documents as lightning

SECTIONS = """
import nvidia_resiliency_ext.straggler as straggler
straggler.Detector.initialize(
    scores_to_compute=["relative_perf_scores", "individual_perf_scores"],
    gather_on_rank0=True # all ranks' results will be available on rank 0
)
for training_iter in range(num_iters):
    ...
    with straggler.Detector.detection_section("data_loading", profile_cuda=False):
        data, labels = data_loader.get_next_batch()
    with straggler.Detector.detection_section("fwd", profile_cuda=True):
        out = model(data)
    ...
    if (training_iter % STRAGGLER_REPORT_INTERVAL) == 0:
        report = straggler.Detector.generate_report()
        if rank == 0:
            stragglers = report.identify_stragglers()
            maybe_notify_user(stragglers)
    ...
straggler.Detector.shutdown()
"""

CALLABLES = """
import nvidia_resiliency_ext.straggler as straggler
straggler.Detector.initialize(
    scores_to_compute=["relative_perf_scores", "individual_perf_scores"],
    gather_on_rank0=True # all ranks' results will be available on rank 0
)
straggler.Detector.wrap_callables(
    callable_ids=[
        straggler.CallableId(DataLoaderClass, "get_next_batch", ignored_args=("self",)),
        straggler.CallableId(ModelClass, "forward", ignored_args=("self",)),
    ]
)
for training_iter in range(num_iters):
    ...
    data, labels = data_loader.get_next_batch()
    out = model(data)
    ...
    if (training_iter % STRAGGLER_REPORT_INTERVAL) == 0:
        report = straggler.Detector.generate_report()
        if rank == 0:
            stragglers = report.identify_stragglers()
            maybe_notify_user(stragglers)
    ...
straggler.Detector.shutdown()
"""

INTERVAL = """
import nvidia_resiliency_ext.straggler as straggler
straggler.Detector.initialize(report_time_interval=300, ...) # Report every 5 minutes
for training_iter in range(num_iters):
    ... # During each training iteration
    report = straggler.Detector.generate_report_if_interval_elapsed()
    if report is not None:
        handle_report(report)
    # Note: straggler.Detector.generate_report() works as usual, users can alternatively use:
    # if (iter_idx % REPORT_INTERVAL) == 0:
    #     straggler.Detector.generate_report()
    ...
straggler.Detector.shutdown()
"""

WITHOUT_COLLECTIVES = """
straggler.Detector.initialize(
    scores_to_compute=["individual_perf_scores"],
    gather_on_rank0=False # each rank will report its own results
)
"""

LIGHTNING = (lightning.WITH_RESUME, lightning.GUIDE_STRAGGLERS)
"""All others that import the name."""


def filled_in(snippet: str) -> str:
    """A guide's example as a program can run it; `work` is what a training does there."""
    return (
        snippet.replace("300, ...)", "300, **more)")
        .replace("    ... #", "    work() #")
        .replace("    ...\n", "    work()\n")
    )


def lightning_filled_in(snippet: str) -> str:
    """What the documents leave open, as in tests/ptl_resiliency; the imports stay."""
    for old, new in lightning.LEFT_OPEN.items():
        snippet = snippet.replace(old, new)
    return snippet
