"""Arguments of the callbacks: documented signatures, what is refused, and the errors of a wrong start."""

from __future__ import annotations

import inspect
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from holdfast.callbacks.arguments import INSTEAD_OF_ROOT, named
from holdfast.callbacks.straggler_findings import StragglerSettings
from holdfast.callbacks.stragglers import LOGGER
from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.board import Board
from holdfast.integrations import transformers
from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    StragglerDetectionCallback,
)
from holdfast.ptl_resiliency.recipes import straggler_det_callback
from tests.processes import Spawner

from .small import TinyModel, trainer

DOCUMENTED = {
    "report_time_interval": 300.0,
    "calc_relative_gpu_perf": True,
    "calc_individual_gpu_perf": True,
    "num_gpu_perf_scores_to_log": 3,
    "gpu_relative_perf_threshold": 0.7,
    "gpu_individual_perf_threshold": 0.7,
    "stop_if_detected": False,
    "logger_name": "test_logger",
}
EXPECTED = StragglerSettings(300.0, True, True, 3, 0.7, 0.7, False, True, 1, "test_logger")


def settings(*args: Any, **kwargs: Any) -> StragglerSettings:
    return StragglerDetectionCallback(*args, **kwargs)._settings


def test_the_documented_signatures() -> None:
    """By keyword and by position: document 1, and the later one that has `enable_ptl_logging`."""
    newer = {name: value for name, value in DOCUMENTED.items() if name != "num_gpu_perf_scores_to_log"}
    newer |= {"num_gpu_perf_scores_to_print": 3, "enable_ptl_logging": True, "profiling_interval": 1}
    assert settings(**DOCUMENTED) == settings(**newer) == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, "test_logger") == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, True, 1, "test_logger") == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, None).logger_name is None


def test_both_names_of_the_number() -> None:
    assert settings(num_gpu_perf_scores_to_log=0).shown == 0
    assert settings(num_gpu_perf_scores_to_print=0).shown == 0
    assert settings(num_gpu_perf_scores_to_print=4, num_gpu_perf_scores_to_log=4).shown == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"num_gpu_perf_scores_to_print": 5, "num_gpu_perf_scores_to_log": 3},
            "num_gpu_perf_scores_to_print=5 and num_gpu_perf_scores_to_log=3: they are two names of one number",
        ),
        (
            {"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False},
            "calc_relative_gpu_perf and calc_individual_gpu_perf are both False: one of them is needed",
        ),
        ({"num_gpu_perf_scores_to_log": -1}, "num_gpu_perf_scores_to_log must be a whole number from 0 on"),
        (
            {"num_gpu_perf_scores_to_print": True},
            "num_gpu_perf_scores_to_print must be a whole number from 0 on, not True",
        ),
        ({"report_time_interval": -1}, "report_time_interval must be seconds from 0 on, not -1"),
        ({"report_time_interval": float("inf")}, "report_time_interval must be seconds from 0 on, not inf"),
        ({"report_time_interval": "300"}, "report_time_interval must be seconds from 0 on, not '300'"),
        ({"gpu_relative_perf_threshold": -0.1}, "gpu_relative_perf_threshold must be a number from 0 on"),
        ({"gpu_individual_perf_threshold": None}, "gpu_individual_perf_threshold must be a number from 0 on"),
        ({"stop_if_detected": "yes"}, "stop_if_detected must be True or False, not 'yes'"),
        ({"stop_on": "score"}, "stop_on must be 'confirmed' or 'scores', not 'score'"),
        ({"calc_relative_gpu_perf": 1}, "calc_relative_gpu_perf must be True or False, not 1"),
        ({"enable_ptl_logging": 1}, "enable_ptl_logging must be True or False, not 1"),
        (
            {"enable_ptl_logging": "mine", "logger_name": "other"},
            "enable_ptl_logging must be True or False, not 'mine'",
        ),
        ({"profiling_interval": 0}, "profiling_interval must be a whole number from 1 on, not 0"),
        ({"logger_name": 3}, "logger_name must be a text, or None for the root logger, not 3"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^StragglerDetectionCallback: ") as refused:
        StragglerDetectionCallback(**wrong)
    assert said in str(refused.value)


# -- the recipe function returns the callback itself


def test_the_straggler_recipe() -> None:
    """Its defaults are those of the callback, but that it ends the training."""
    callback = straggler_det_callback()
    assert settings(stop_if_detected=True) == callback._settings
    assert type(callback) is StragglerDetectionCallback
    assert callback._settings == StragglerSettings(300.0, True, True, 5, 0.7, 0.7, True, True, 1, LOGGER)
    other = straggler_det_callback(60, False, 0.5, 0.6)._settings
    assert (other.report_time_interval, other.stop_if_detected) == (60.0, False)
    assert (other.relative_threshold, other.individual_threshold) == (0.5, 0.6)


# -- the constructors' docstrings describe every parameter, with unit and default, as documents 1 and 2 promise


CALLBACKS = [
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    transformers.FaultToleranceCallback,
    transformers.FaultToleranceSectionsCallback,
]
UNITS = {
    "autoresume": "True, False, or None",
    "calculate_timeouts": "True or False",
    "simulated_fault_params": "in seconds",
    "exp_dir": "A path, or None",
    "logger_name": "A text, or None",
    "exc_handling_policy": "A function, or None",
}


def items(callback: Any) -> dict[str, str]:
    """Each item of the docstring's arguments on one line."""
    doc = inspect.getdoc(callback.__init__) or ""
    section = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^    (\w+): ", re.sub(r"\n {8}", " ", section), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


@pytest.mark.parametrize("callback", CALLBACKS, ids=lambda one: f"{one.__module__}")
def test_docstring_has_unit_and_default_of_every_parameter(callback: Any) -> None:
    parameters = list(inspect.signature(callback).parameters.values())
    found = items(callback)
    assert list(found) == [one.name for one in parameters]
    for one in parameters:
        assert UNITS[one.name] in found[one.name], one.name
        default = "Required." if one.default is one.empty else f"Default: {one.default!r}."
        assert found[one.name].endswith(f" {default}"), one.name


# -- where a callback's lines go in a program that has set up no logging, and in one that has


NAMES = [None, "root", "holdfast_test.callback"]


@contextmanager
def bare() -> Iterator[Callable[[], str]]:
    """No logging is set up, as outside of pytest, which has its handlers at the root in each phase of a test. Gives
    what is on stderr."""
    loggers = [logging.getLogger(name) for name in (None, INSTEAD_OF_ROOT, "holdfast_test.callback")]
    before = [(each.handlers, each.level) for each in loggers]
    shown = io.StringIO()
    try:
        for each in loggers:
            each.handlers = []
            each.setLevel(logging.NOTSET)
        loggers[0].setLevel(logging.WARNING)
        with redirect_stderr(shown):
            yield shown.getvalue
    finally:
        for each, (handlers, level) in zip(loggers, before, strict=True):
            each.handlers = handlers
            each.setLevel(level)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_shown_where_no_logging_is_set_up(name: str | None) -> None:
    with bare() as shown:
        for _ in range(2):  # callbacks ask at each start
            log = named(name)
        log.info("for your information")
        log.debug("in detail")
        assert shown() == "for your information\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_root_logger_stays_the_programs(name: str | None) -> None:
    with bare() as shown:
        root = logging.getLogger()
        log = named(name)
        assert root.handlers == [] and root.level == logging.WARNING
        logging.getLogger("another.package").info("not shown")
        logging.basicConfig(level=logging.INFO, format="program: %(message)s", stream=sys.stderr)
        log.info("for your information")
        named(name).info("again")
        assert shown() == "program: for your information\nprogram: again\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_program_with_handlers_decides(name: str | None) -> None:
    with bare() as shown:
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        named(name).info("not wanted")
        named(name).warning("wanted")
        assert shown() == "wanted\n"


# -- the errors of a wrong start


KINDS = [FaultToleranceCallback, FaultToleranceSectionsCallback]
BOTH = pytest.mark.parametrize("kind", KINDS, ids=["heartbeats", "sections"])
PREFIX = "[FaultToleranceCallback@rank0] "


@BOTH
def test_the_folder_is_made_below_the_trainers_own_or_said_to_be_missing(
    kind: type[Any], ranked: Board, tmp_path: Path
) -> None:
    trainer(tmp_path, kind(False, True), max_steps=1).fit(TinyModel())
    assert (tmp_path / "ft_state").is_dir()
    (tmp_path / "file").touch()
    callback = kind(False, True, exp_dir=tmp_path / "file" / "state")
    job = trainer(tmp_path, callback, max_steps=1)
    with pytest.raises(
        ValueError,
        match=f"save directory does not exist: {tmp_path}/file/state \\(and cannot be made: Not a dir",
    ):
        job.fit(TinyModel())
    assert Supervision._current is None and "teardown" not in vars(job.strategy)


@BOTH
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"autoresume": "no"}, "autoresume must be True or False, not 'no'"),
        ({"calculate_timeouts": None}, "calculate_timeouts must be True or False, not None"),
        ({"exp_dir": 3}, "exp_dir must be a folder's path or None, not 3"),
    ],
)
def test_wrong_arguments_are_told_at_once(kind: type[Any], wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**{"autoresume": False, "calculate_timeouts": True, **wrong})


def test_a_policy_is_a_function() -> None:
    with pytest.raises(ValueError, match="exc_handling_policy must be a function of the exception or None"):
        FaultToleranceSectionsCallback(False, True, exc_handling_policy="x")  # type: ignore[arg-type]


@BOTH
def test_without_a_launcher_the_error_says_what_to_run(
    kind: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    monkeypatch.setattr("sys.argv", ["/a/path/train.py"])
    with pytest.raises(RuntimeError) as error:
        trainer(tmp_path, kind(False, True)).fit(TinyModel())
    assert str(error.value) == (
        f"{kind.__name__} needs ft_launcher, which watches over the ranks, and this program was started without it "
        "(FT_RANK_MONITOR_IPC_SOCKET is not set). Run `ft_launcher --nproc-per-node=N train.py` with N ranks on this "
        "node, in place of `python train.py` or torchrun; or take the callback out of the trainer."
    )
    with pytest.raises(
        RuntimeError, match=r"FINISHED_FLAG_FILE' env variable is not set.*ft_launcher --nproc"
    ):
        trainer(tmp_path, kind(True, True)).fit(TinyModel())


class TestNoLimits:
    @pytest.fixture
    def config(self) -> FaultToleranceConfig:
        return FaultToleranceConfig(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)

    def test_there_must_be_limits_or_a_way_to_learn_them(
        self, ranked: Board, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        with pytest.raises(RuntimeError) as error:
            trainer(tmp_path, FaultToleranceCallback(False, False)).fit(TinyModel())
        assert str(error.value) == (
            "Fault tolerance doesn't have valid timeouts set and 'calculate_timeouts' is False."
        )
        with caplog.at_level(logging.INFO):
            job = trainer(tmp_path, FaultToleranceCallback(False, True), max_steps=1)
            job.fit(TinyModel())
        assert f"{PREFIX}Fault tolerance client initialized. Timeouts: not calculated yet." in caplog.messages

    def test_the_sections_must_have_limits(self, ranked: Board, tmp_path: Path) -> None:
        with pytest.raises(ValueError) as error:
            trainer(tmp_path, FaultToleranceSectionsCallback(False, True)).fit(TinyModel())
        assert str(error.value) == (
            "rank_section_timeouts should contain {'checkpointing', 'setup', 'step'} entries, and nothing else; it has "
            "none. Give ft_launcher the limits in seconds, for example "
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"
        )
        assert Supervision._current is None


def test_a_client_of_the_programs_own_is_an_error(ranked: Board, tmp_path: Path) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="another RankMonitorClient of this process"):
        trainer(tmp_path, FaultToleranceCallback(False, True)).fit(TinyModel())
    client.shutdown_workload_monitoring()


@BOTH
def test_autoresume_true_without_its_variable_is_one_line(
    kind: type[Any],
    ranked: Board,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Rank 0 logs it; the exception ends a rank with 1 and shows no traceback."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", "")
    with pytest.raises(SystemExit) as ended:
        trainer(tmp_path, kind(True)).fit(TinyModel())
    assert ended.value.code == 1 and isinstance(ended.value, RuntimeError)
    assert "env variable is not set. Was this job launched with FT launcher?" in str(ended.value)
    assert caplog.messages.count(PREFIX + str(ended.value)) == 1


@BOTH
@pytest.mark.parametrize("named", [True, False])
def test_by_default_the_flag_is_made_where_the_variable_is_set(
    kind: type[Any], named: bool, ranked: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag") if named else "")
    trainer(tmp_path, kind(), max_steps=1).fit(TinyModel())
    assert (tmp_path / "flag").exists() == named


# -- the callbacks with `pytorch_lightning`, and with both names of Lightning in one process


EITHER = Path(__file__).resolve().parent / "programs" / "either_lightning.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["pytorch_lightning"], ["lightning.pytorch", "pytorch_lightning"]], ids=len
)
def test_either_lightning(names: list[str], ranked: Board, spawn: Spawner, tmp_path: Path) -> None:
    """In a process of its own, as this one has loaded `lightning`; it finds the board where a rank does."""
    job = spawn.python(
        EITHER, str(tmp_path / "out"), *names, env={"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "flag")}
    )
    assert job.wait() == 0, job.output()[-4000:]
    (line,) = (line for line in job.out().splitlines() if line.startswith("{"))
    told = json.loads(line)
    assert told.pop("loaded") == sorted(name.partition(".")[0] for name in names)
    assert sorted(told) == sorted(names)
    checkpoints = 0
    for name in names:
        # Stopped early after three epochs of ten: complete.
        assert (told[name]["bases"], told[name]["step"], told[name]["flag"]) == (True, 30, True)
        assert told[name]["checkpoints"] >= checkpoints + 6
        checkpoints = told[name]["checkpoints"]
