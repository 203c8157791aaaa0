"""What every test gets: a private place for temporary files, and the leak check after it. And their order.

What always holds: a test that passed and left a process, a thread, a descriptor or a file behind is an error, with a
list of what it left; leaked processes are ended, so that one bad test does not disturb the next.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Generator, Iterator
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import leaks

pytest_plugins = ["tests.processes", "tests.jobs", "tests.cluster", "tests.boards", "tests.clients"]

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
REGRESSIONS = TESTS.parent / "docs" / "regressions.md"

# Two shared cores: how long one example takes, or its making, says nothing about the code. The same few examples in
# each run, so that who changes something sees what that changed; `make test-all` looks for new ones, and for more.
settings.register_profile(
    "holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=40
)
settings.register_profile("explore", settings.get_profile("holdfast"), derandomize=False, max_examples=150)
settings.load_profile("holdfast")


# Where nohup or a script in the background starts the tests, these are ignored, also in all that the tests start.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


# What a test file has none of if it starts no process, sleeps nowhere and needs no framework.
IMPURE = re.compile(
    r"Spawner|Jobs\b|Cluster\b|subprocess|multiprocessing|os\.fork|Popen|sleep\(|small_disk|(?<!\bE\.)Thread\(|"
    r"(import|from) (torch|lightning|pytorch_lightning|transformers|matplotlib)|"
    r"from tests\.(jobs|cluster|launcher|nodes|slurm)\b"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check", action="store_true", help="pure test files, and tests marked `check`: `make check`"
    )
    parser.addoption(
        "--regressions", action="store_true", help="these, and what docs/regressions.md names: `make test`"
    )


@cache
def _is_pure(file: Path) -> bool:
    return not IMPURE.search(file.read_text())


@cache
def regressions() -> frozenset[str]:
    """The tests that docs/regressions.md names: files, and tests of files as `FILE::NAME`."""
    return frozenset(re.findall(r"`(tests/[^`]+)`", REGRESSIONS.read_text()))


def _named(config: pytest.Config) -> frozenset[str]:
    return regressions() if config.getoption("--regressions") else frozenset()


def _path(file: Path) -> str:
    return str(file.relative_to(TESTS.parent))


def _is_left_out(file: Path, config: pytest.Config) -> bool:
    """Whether tests of this file run only where they are marked `check`, or named one by one."""
    is_part = config.getoption("--check") or config.getoption("--regressions")
    return bool(is_part) and not _is_pure(file) and _path(file) not in _named(config)


def _is_chosen(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether this test runs, though others of its file are left out."""
    test = f"{_path(item.path)}::{item.name.partition('[')[0]}"
    return item.get_closest_marker("check") is not None or test in _named(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a test file that is left out and marks nothing."""
    if config.getoption("--check") and collection_path.name in ("ptl_resiliency", "transformers"):
        return True  # their conftest.py imports a framework
    if not collection_path.match("test_*.py"):
        return None
    if not _is_left_out(collection_path, config) or "mark.check" in collection_path.read_text():
        return None
    start = f"{_path(collection_path)}::"
    return None if any(test.startswith(start) for test in _named(config)) else True


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes that share the tests: `make test WORKERS=2`
        leaks.take_own_shm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports go to the first process as UTF-8, and a name on a disk, which a log may show, need not be that."""
    report = yield
    sections = report.sections
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests first: else one of the processes that share the tests has one left when the others are done.

    Each process begins with a share of its own of the slow ones, in the order of the folders, and so of different
    rooms: those that wait for nodes run beside those that load Lightning. What is left is shared out as they finish.
    """
    soak = [item for item in items if item.get_closest_marker("soak")]
    if misplaced := [item.nodeid for item in soak if not _may_soak(item.path)]:
        raise pytest.UsageError(f"marked soak outside of tests/soak: {', '.join(misplaced)}: mark it variant")
    left_out = {each for each in items if _is_left_out(each.path, config) and not _is_chosen(each, config)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [each for each in items if each not in left_out]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        slow = [item for item in items if item.get_closest_marker("slow")]
        quick = [item for item in items if not item.get_closest_marker("slow")]
        items[:] = [
            item
            for number in range(workers)
            for kind in (slow, quick)
            for item in _share(kind, number, workers)
        ]


def _may_soak(file: Path) -> bool:
    """Soak tests repeat what other tests have shown; no test goes there to save time."""
    return file.parent.name == "soak" or file.name == "test_soak.py"


def _share(items: list[pytest.Item], number: int, of: int) -> list[pytest.Item]:
    """The number-th of so many equal parts, one after the other."""
    return items[len(items) * number // of : len(items) * (number + 1) // of]


@pytest.fixture(scope="session", autouse=True)
def _private_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the session its own $TMPDIR and state folder, and put `src` on the path of the processes it starts.

    Both are short paths: a Unix socket's may have 107 bytes only.
    """
    tmp_path_factory.getbasetemp()  # pytest keeps its own folders, for looking at after a failure
    place = Path(tempfile.mkdtemp(prefix="hf-"))
    (place / "tmp").mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("TMPDIR", str(place / "tmp"))
    patch.setattr(tempfile, "tempdir", None)  # ask $TMPDIR again
    patch.setenv("XDG_STATE_HOME", str(place / "state"))
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "compiled"))  # Lightning has torch make it
    patch.setenv("PYTHONPATH", str(SOURCE), prepend=os.pathsep)
    patch.setenv(leaks.MARK, uuid.uuid4().hex)
    # One tracker per process, started by the first use of shared memory and kept: here it is no test's leak.
    resource_tracker.ensure_running()
    yield
    patch.undo()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(place)]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a small tmpfs needs root and CAP_SYS_ADMIN: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """A training that was preempted, or failed under Lightning, keeps its handlers to its process's end."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _nothing_left_behind(_private_places: None) -> Iterator[None]:
    before = leaks.take()
    yield
    if not os.path.isdir(os.environ["TMPDIR"]):  # the tests after it must not suffer
        os.makedirs(os.environ["TMPDIR"])
        pytest.fail("this test has removed $TMPDIR, the folder of all tests", pytrace=False)
    left = leaks.since(before)
    if left:
        text = "\n".join(f"  {line}" for line in left.lines())
        leaks.clear(left)
        pytest.fail(f"left behind by this test:\n{text}", pytrace=False)
