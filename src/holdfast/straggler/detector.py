"""`Detector`: what training code calls. One per process, by class methods, as the field's documents have it.

What always holds: importing this and measuring sections load no torch; no call but `generate_report` and its relatives
waits for another rank, and with individual scores only and no gathering those do not either. A failure in a section, a
wrapped callable or a report is logged once and never raised.
Does not cover: GPUs of other makers than NVIDIA, whose scores are NaN.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.fault_tolerance import environment

from . import labels
from .kernels.choose import choose
from .report import Report
from .sections import SectionContext
from .session import Session
from .settings import Settings, Thresholds, checked_thresholds
from .wrapping import CallableId

if TYPE_CHECKING:
    import torch.distributed as dist

    from .labels import Groups


class Detector:
    """Measures sections of the training and reports how each rank performs. Has no instances.

    Calls before `initialize`, but for `shutdown` and `restore_original_callables`, raise RuntimeError.
    """

    initialized: ClassVar[bool] = False
    _session: ClassVar[Session | None] = None

    def __new__(cls) -> Detector:
        """Raises RuntimeError: everything is called on the class."""
        raise RuntimeError(
            "Detector has no instances: call Detector.initialize() and the others on the class"
        )

    @classmethod
    def initialize(
        cls,
        scores_to_compute: Sequence[str] | str = "all",
        gather_on_rank0: bool = True,
        profiling_interval: int = 1,
        report_time_interval: float = 60,
        node_name: str | None = None,
        process_group: dist.ProcessGroup | None = None,
        groups: Groups | None = None,
        thresholds: Thresholds | None = None,
        background: bool = False,
        run_dir: str | os.PathLike[str] | None = None,
        state_file: str | os.PathLike[str] | None = None,
        max_profiled_sections: int | None = None,
    ) -> None:
        """Begin. The same on every rank; waits for no other rank.

        A rank whose arguments differ from those of the first rank that came here logs a warning that names them.

        Args:
            scores_to_compute: `"relative_perf_scores"`, `"individual_perf_scores"`, a list of these, or `"all"`.
            gather_on_rank0: rank 0 gets the scores of all ranks and the others None; if False, each gets its own.
            profiling_interval: of each section's entries, every n-th is measured, the first included.
            report_time_interval: about how many seconds between reports of `generate_report_if_interval_elapsed`; 0 is
                as often as possible, in every `profiling_interval`-th step from the 17th on.
            node_name: what reports call this node; None is the host's name.
            process_group: the ranks that are compared; None is all of them. Rank 0 is the group's first.
            groups: for verdicts, which ranks do the same work: a label for each rank of the process group in order, a
                function from (global) rank to label, called on rank 0, the `DeviceMesh` of the job, or `"megatron"` for
                Megatron's parallel state. None finds it from the sections that they run.
            thresholds: what a verdict takes; None is `Thresholds()`.
            background: exchange and judge in a thread, over a gloo group of its own that the first report makes. A
                report is then returned by a later call: the newest that is finished.
            run_dir: where ranks that have reports keep them for `holdfast stragglers`; None is the job's run directory
                under ft_launcher, else nowhere.
            state_file: where rank 0 keeps what verdicts know of the ranks' past, for the next start; None is a file in
                the run directory, if there is one.
            max_profiled_sections: of how many runs of outermost sections GPU kernels are measured between two reports.
                CUPTI then leaves the process until the next report. None is all. Wall times are always measured.

        Raises:
            ValueError: an argument, or HOLDFAST_KERNEL_SOURCE, is not what is allowed.
            RuntimeError: it is initialised already.
        """
        if cls._session is not None:
            raise RuntimeError(
                "Detector is initialized already: call Detector.shutdown() before initializing it again"
            )
        group = _member(process_group)
        settings = Settings(
            scores_to_compute=scores_to_compute,
            gather_on_rank0=gather_on_rank0,
            profiling_interval=profiling_interval,
            report_time_interval=report_time_interval,
            node_name=socket.gethostname() if node_name is None else node_name,
            process_group=group,
            groups=labels.checked(groups, group),
            thresholds=thresholds,
            background=background,
            run_dir=environment.run_dir() if run_dir is None else _absolute(run_dir),
            state_file=_absolute(state_file),
            max_profiled_sections=max_profiled_sections,
        )
        cls._session = Session(settings, choose(max_sections=settings.max_profiled_sections))
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End: wrapped callables are restored and what was measured is forgotten. May be called at any time."""
        session, cls._session = cls._session, None
        cls.initialized = False
        if session is not None:
            session.close()

    @staticmethod
    def detection_section(name: str | None = None, profile_cuda: bool = True) -> SectionContext:
        """A context manager that measures its body: `with Detector.detection_section("fwd"): ...`.

        Sections may be nested, and entered in several threads. An entry is measured if the body raises, too.

        Args:
            name: the section, which may be entered in several places; None is `<file>:<line>` of the caller.
            profile_cuda: whether GPU kernels that the body launches are measured, where there is a source for them.

        Raises:
            RuntimeError: the detector is not initialised.

        Does not cover: a name that is no text of 1 to 1,000 characters, or that of a `collective_section`: it is logged
        once, and its body is not measured. Work that the GPU does after the body has ended; wall time is measured
        without waiting for it.
        A section beyond the first 1,000 names is not measured.
        """
        if name is None:
            name = _caller()
        return (Detector._session or running()).sections.enter(name, profile_cuda)

    @staticmethod
    def collective_section(name: str, profile_cuda: bool = True) -> SectionContext:
        """A context manager around what waits for other ranks: a barrier, an explicit all-reduce, a step of FSDP.

        In synchronised training the rank that others wait for is the one that waits least. So these times are in no
        score, where the fast ranks would look slow: verdicts take them to tell who arrives late, and reports show them
        in `local_section_summaries`.

        Raises:
            RuntimeError: the detector is not initialised.

        Does not cover: a name that is no text of 1 to 1,000 characters, or that of a `detection_section`: it is logged
        once, and its body is not measured. Collectives in which only some of the compared ranks take part. Nor
        operations with a root or a direction (broadcast, reduce, scatter, gather, send): a rank that sends and
        continues waits least, and would be blamed. Put no collective section around them.
        """
        return running().sections.enter(name, profile_cuda, waits=True)

    @classmethod
    def wrap_callables(cls, callable_ids: Sequence[CallableId], profile_cuda: bool = True) -> None:
        """Measure callables: each call is a section, named after its `CallableId`. May be called again for more.

        Raises:
            RuntimeError: the detector is not initialised.
            ValueError: one of them is no callable that can be replaced; then none is wrapped.
        """
        running().wrapped.wrap(callable_ids, profile_cuda)

    @classmethod
    def restore_original_callables(cls) -> None:
        """Put back all callables as they were before they were wrapped."""
        if cls._session is not None:
            cls._session.wrapped.restore()

    @classmethod
    def set_thresholds(cls, thresholds: Thresholds) -> None:
        """Judge by other thresholds from the next report on. Only rank 0's count; sends nothing to other ranks.

        The last reports are judged by them as well. The warm-up is not repeated.

        Raises:
            RuntimeError: the detector is not initialised.
            ValueError: these are no `Thresholds`.

        Does not cover: `min_ranks` of groups that are found from sections, which stays that of the first report.
        """
        running().verdicts.use(checked_thresholds(thresholds, "set_thresholds"))

    @classmethod
    def generate_report(cls) -> Report | None:
        """The report of what was measured since the last one. Called by all ranks in the same step.

        Returns:
            On rank 0 the report of all ranks, on others None; without `gather_on_rank0` each rank's own report.
            With `background` the newest one that is finished and was not returned yet, or None: usually that of the
            call before.

        Raises:
            RuntimeError: the detector is not initialised.

        Does not cover: a rank that does not call it. The others wait, as in any collective of the training.
        """
        return running().report()

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """Call this in each step of every rank; about every `report_time_interval` seconds it makes a report.

        It counts steps, so that no rank has to ask the others; there is no report in the first 16. Returns None
        in other steps, and on ranks that get no report (`is_interval_elapsed` tells the two apart). With `background`
        the number of steps is agreed on once, and not revised with each report.
        """
        return running().step()

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """On every rank, whether the last `generate_report_if_interval_elapsed` made a report."""
        return running().interval_elapsed


def running() -> Session:
    """What is between `initialize` and `shutdown`. RuntimeError if nothing is."""
    session = Detector._session
    if session is None:
        raise RuntimeError("Detector is not initialized. Call Detector.initialize() first")
    return session


def _member(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    if group is not None:
        loaded = sys.modules.get("torch.distributed")  # without it, nothing is a group
        if loaded is None or not isinstance(group, loaded.ProcessGroup) or loaded.get_rank(group) < 0:
            raise ValueError(
                f"Detector.initialize: process_group must be a group that this rank is in, not {group!r}"
            )
    return group


def _absolute(path: Any) -> Any:
    """Whatever the training does to its working directory later. What is no path is for `Settings` to refuse."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    return os.path.abspath(text) if isinstance(text, str) and text.strip() else text


def _caller() -> str:
    """File and line of the code that opened a section without a name, past the likes of `ExitStack`."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
