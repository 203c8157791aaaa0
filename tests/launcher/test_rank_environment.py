"""What works under torchrun works here: environment, ways to start a program, and what programs start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import SOURCE
from tests.jobs import Jobs, run_twins
from tests.processes import Spawner

ADDED = {"FT_RANK_MONITOR_IPC_SOCKET", "HOLDFAST_CONFIG", "HOLDFAST_RUN_DIR"}
"""Where the rank finds its board, the settings for `client.cfg`, and where it writes its straggler reports."""

OTHER = {
    "MASTER_ADDR": "torchrun's is the host's name; the store of a one-node job listens on loopback only",
    "MASTER_PORT": "each cycle has a store of its own, on a port that the kernel chose",
    "TORCHELASTIC_RUN_ID": "both draw one; torchrun draws one even when --rdzv-id gives it",
    "TORCHELASTIC_ERROR_FILE": "below the launcher's own directory, not in the shared temporary one",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR1 and SIGUSR2 are passed on too",
    "TORCH_FR_BUFFER_SIZE": "torch's flight recorder is on, for incidents; the value is recent torch's own default",
}

LAUNCHES = "from holdfast.fault_tolerance.launcher.main import console; console()"
TEST_KIT = {"NOTES", "TMPDIR"}


def test_no_python_path_is_added(jobs: Jobs, spawn: Spawner) -> None:
    """Holdfast is installed as everywhere else: nothing on PYTHONPATH, for the launcher or for its ranks."""
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {LAUNCHES}"
    script = jobs.script("say('python path', os.environ.get('PYTHONPATH'))")
    done = spawn([sys.executable, "-c", start, script], env={"PYTHONPATH": None})
    assert done.wait() == 0
    assert done.out() == "rank 0 cycle 0 python path None\n"


LATE_THREAD = """
import threading, types
sys.modules.setdefault("torch", types.ModuleType("torch"))
go = threading.Event()

def finish():
    go.wait()
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    say("finished")

threading.Thread(target=finish, daemon=True).start()
go.set()
"""


def test_threads_may_finish_before_python_ends(jobs: Jobs) -> None:
    """As torch's that end a collective: those would abort the process when Python has no time for them any more."""
    job = jobs(LATE_THREAD, nproc=1)
    job.end(0)
    assert job.lines("finished")


# -- a sitecustomize before PYTHONPATH -----------------------------------------------------------------------


def test_with_it_ranks_start_cold(jobs: Jobs, spawn: Spawner, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").touch()
    # As a .pth file would, in the launcher: the ranks of this test have no such file.
    start = f"import sys; sys.path.insert(1, {str(site)!r}); {LAUNCHES}"
    script = jobs.script("say('runs')")
    words = ["--ft-run-dir", tmp_path / "run", "--nproc-per-node=2", script]
    spawned = spawn([sys.executable, "-c", start, *words])
    assert spawned.wait() == 0
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    assert "takes a sitecustomize from" in journal.read_text()
    assert '"start": "warm"' not in journal.read_text()


def test_a_broken_sitecustomize_never_lets_a_zygote_run_the_script(jobs: Jobs, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise RuntimeError('a broken site')\n")
    script = tmp_path / "train.py"
    script.write_text("import os\nos.write(1, f'{os.environ.get(\"RANK\")} runs\\n'.encode())\n")
    paths = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
    flags = ("--nproc-per-node", "2", "--ft-warm-start", "on")
    job = jobs.command(*flags, script, env={"PYTHONPATH": paths})
    said = job.end(0)
    assert sorted(job.lines("runs")) == ["0 runs", "1 runs"]
    assert "warm start: its zygote" in said and "Ranks start cold" in said


# -- what works under torchrun works here, with the same output


TWO = ("--nproc-per-node", "2")

STARTS_PROCESSES = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

class Squares(list):
    def __init__(self):
        super().__init__(number * number for number in range(8))

annotated: int = 1

def child(number, results=None):
    main = sys.modules["__main__"]
    both = sys.modules.get("__mp_main__") is main
    answer = (RANK, number, multiprocessing.parent_process() is not None, sys.argv, sys.path, os.getcwd(),
              main.__name__, main.__file__, both, main.annotated, multiprocessing.get_start_method(allow_none=True))
    return results.put((*answer, multiprocessing.current_process().name)) if results else answer

def collate(items):
    return items, child(0)

def torch_child(index, folder):
    open(f"{folder}/{RANK}-{index}", "w").close()

if __name__ == "__main__":
    import torch.multiprocessing
    from torch.utils.data import DataLoader

    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(1, results))
        process.start()
        say(method, results.get())
        process.join()
        say(method, process.exitcode)
    with ProcessPoolExecutor(2) as pool:
        say("pool", list(pool.map(child, range(2))))
    os.mkdir(sys.argv[1])
    torch.multiprocessing.spawn(torch_child, args=(sys.argv[1],), nprocs=2)
    say("torch spawn", sorted(os.listdir(sys.argv[1])))
    for workers, method in ((0, None), (2, "fork"), (1, "spawn")):
        how = dict(num_workers=workers, multiprocessing_context=method, collate_fn=collate)
        say("loader", list(DataLoader(Squares(), batch_size=4, **how)))
"""


@pytest.mark.slow
def test_programs_that_start_processes(jobs: Jobs) -> None:
    """From a warm start, which comes to them: the main module of a child by spawn is the script."""
    script = jobs.script(STARTS_PROCESSES)
    twins = run_twins(jobs, "--nproc-per-node", "1", script, "spawned-{who}", env={"PET_FT_WARM_START": "on"})
    ours, theirs = (each.out() for each in twins)
    assert ours.replace("spawned-ours", "") == theirs.replace("spawned-theirs", "")
    assert len(ours.splitlines()) == 11 and ours.count("__mp_main__") >= 4


LOOKS_AROUND = """
import json, resource, stat
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
handlers = {number.name: str(signal.getsignal(number)) for number in signal.Signals}
facts = dict(
    rank=RANK, argv=sys.argv, path=sys.path, cwd=os.getcwd(), name=__name__, file=globals().get("__file__"),
    package=__package__, spec=str(getattr(__spec__, "name", None)), annotations=sorted(globals()),
    flags=str(sys.flags), executable=sys.executable, orig=sys.orig_argv[:2], hook=sys.excepthook is sys.__excepthook__,
    session=os.getsid(0) == os.getpid(), group=os.getpgid(0) == os.getpid(), blocked=sorted(map(str, blocked)),
    handlers=handlers, umask=os.umask(0o22), limits=resource.getrlimit(resource.RLIMIT_NOFILE),
    descriptors=sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 900)[:-1],
    stdin=os.path.realpath("/proc/self/fd/0"), nice=os.nice(0), cpus=sorted(os.sched_getaffinity(0)),
    buffered=sys.stdout.line_buffering, writes_through=sys.stdout.write_through, encoding=sys.stdout.encoding,
    modules=sorted(name for name in sys.modules if "." not in name), environ=dict(os.environ),
)
os.write(1, (json.dumps(facts) + "\\n").encode())
"""

MEANT = {"hook", "modules", "environ"}
"""The prologue's traces: it keeps an unhandled exception for the launcher, has set the parent-death signal, and lets
torch's threads finish at the end. Descriptor 900 is where a dump of the main thread's stack would go."""
PROLOGUE_IMPORTS = {"sitecustomize", "ctypes", "_ctypes", "struct", "_struct", "atexit"}


USERS_OWN = (
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_FR_BUFFER_SIZE",
)
LAUNCHERS = ("--role", "trainer", "--rdzv-id", "job-7", "--signals-to-handle", "SIGTERM,SIGINT")


@pytest.mark.parametrize(
    ("what", "env", "same"),
    [
        (("--max-restarts", "3", "pack/train.py"), {}, set()),
        (
            (*LAUNCHERS, "-m", "pack.train"),
            dict.fromkeys(USERS_OWN, "3"),
            {"TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_FR_BUFFER_SIZE"},
        ),
    ],
    ids=["script", "module, and what the user set"],
)
def test_surroundings_of_a_program(
    jobs: Jobs, what: tuple[str, ...], env: dict[str, str | None], same: set[str]
) -> None:
    """Of one that starts cold; warm/test_telltale.py compares that with a warm start."""
    (jobs.folder / "pack").mkdir()
    (jobs.folder / "pack" / "__init__.py").touch()
    jobs.script(LOOKS_AROUND, "pack/train.py")
    arguments = *what, "--lr", "0.1", "two words", ""
    ours, theirs = run_twins(jobs, *TWO, *arguments, env={"PET_FT_WARM_START": "off", **env}).reports()
    assert ours.keys() == theirs.keys() == {0, 1}
    for rank, seen in ours.items():
        different = {name for name in seen if seen[name] != theirs[rank][name]}
        assert different <= MEANT, {name: (seen[name], theirs[rank][name]) for name in different - MEANT}
        assert set(theirs[rank]["modules"]) ^ set(seen["modules"]) <= PROLOGUE_IMPORTS
        mine, other = seen["environ"], theirs[rank]["environ"]
        names = {name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name)}
        assert names - TEST_KIT == (ADDED | set(OTHER)) - same


def test_surroundings_of_a_run_path(jobs: Jobs) -> None:
    """torchrun runs it by runpy in an interpreter of its own; the difference in imported modules is that one's."""
    script = jobs.script("say(__name__, sys.argv[1:], os.path.basename(__file__))")
    job = jobs.plain(*TWO, "--run-path", script, "--lr", "0.1")
    job.end(0)
    own = f"__main__ ['--lr', '0.1'] {script.name}"
    assert sorted(job.lines("")) == [f"rank {rank} cycle 0 {own}" for rank in range(2)]


def test_surroundings_with_a_pythonpath_and_a_sitecustomize_of_the_site(jobs: Jobs, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.site_was_here = __file__\n")
    text = "say(sys.site_was_here, os.environ['PYTHONPATH'], sys.path[:3], sys.modules['sitecustomize'].__file__)"
    env = {"PYTHONPATH": f"{site}:{sys.path[0]}"}
    assert len(run_twins(jobs, *TWO, jobs.script(text), env=env).same_output()) == 2


def test_program_from_the_path_that_runs_python(jobs: Jobs) -> None:
    script = jobs.script("say(sys.argv[1:], os.environ.get('PYTHONPATH'), len(sys.path))")
    run_twins(jobs, *TWO, "--no-python", sys.executable, "-u", script, "x").same_output()
