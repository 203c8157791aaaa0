"""What works under torchrun works here, with the same output: the ways to start a program, and what programs start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launcher.conftest import Jobs, run_twins

TWO = ("--nproc-per-node", "2")

STARTS_PROCESSES = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

class Squares(list):
    def __init__(self):
        super().__init__(number * number for number in range(8))

def child(number, results=None):
    answer = (RANK, number, multiprocessing.parent_process() is not None, sys.argv, len(sys.path))
    return results.put(answer) if results else answer

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
    for workers in (0, 2):
        say("loader", [batch.tolist() for batch in DataLoader(Squares(), batch_size=4, num_workers=workers)])
"""


@pytest.mark.slow
def test_programs_that_start_processes(jobs: Jobs) -> None:
    twins = run_twins(jobs, "--nproc-per-node", "1", jobs.script(STARTS_PROCESSES), "spawned-{who}")
    ours, theirs = (
        each.out().replace(f"spawned-{who}", "") for each, who in zip(twins, ("ours", "theirs"), strict=True)
    )
    assert ours == theirs and len(ours.splitlines()) == 10


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
    modules=sorted(name for name in sys.modules if "." not in name),
)
os.write(1, (json.dumps(facts) + "\\n").encode())
"""

MEANT = {"hook", "modules"}
"""The prologue's traces: it keeps an unhandled exception for the launcher, has set the parent-death signal, and lets
torch's threads finish at the end. Descriptor 900 is where a dump of the main thread's stack would go."""
PROLOGUE_IMPORTS = {"sitecustomize", "ctypes", "_ctypes", "struct", "_struct", "atexit"}


@pytest.mark.parametrize("what", [("pack/train.py",), ("-m", "pack.train")], ids=["script", "module"])
def test_surroundings_of_a_program(jobs: Jobs, what: tuple[str, ...]) -> None:
    """Of one that starts cold; warm/test_telltale.py compares that with a warm start."""
    (jobs.folder / "pack").mkdir()
    (jobs.folder / "pack" / "__init__.py").touch()
    jobs.script(LOOKS_AROUND, "pack/train.py")
    arguments = *what, "--lr", "0.1", "two words", ""
    ours, theirs = run_twins(jobs, *TWO, *arguments, env={"PET_FT_WARM_START": "off"}).reports()
    assert ours.keys() == theirs.keys() == {0, 1}
    for rank, seen in ours.items():
        different = {name for name in seen if seen[name] != theirs[rank][name]}
        assert different <= MEANT, {name: (seen[name], theirs[rank][name]) for name in different - MEANT}
        assert set(theirs[rank]["modules"]) ^ set(seen["modules"]) <= PROLOGUE_IMPORTS


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
    lines = run_twins(
        jobs, *TWO, jobs.script(text), env={"PYTHONPATH": f"{site}:{':'.join(sys.path[:1])}"}
    ).same_output()
    assert len(lines) == 2


def test_program_from_the_path_that_runs_python(jobs: Jobs) -> None:
    script = jobs.script("say(sys.argv[1:], os.environ.get('PYTHONPATH'), len(sys.path))")
    run_twins(jobs, *TWO, "--no-python", sys.executable, "-u", script, "x").same_output()
