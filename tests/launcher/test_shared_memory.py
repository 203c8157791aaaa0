"""A rank crashes, or the launcher is killed: the shared memory of the ranks is removed by those who know of it.

That is torch's shared-memory manager, two seconds after its last user has ended, and Python's resource tracker. No
restart waits for the manager, and nothing of them is left in the end. Source: torch's libshm.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from holdfast.fault_tolerance.processes import kill, proc
from tests.jobs import Job, Jobs
from tests.processes import Spawner, alive, wait_until

TENSORS = """
def name_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().partition("(")[2].rpartition(")")[0]
    except OSError:
        return "-"

def is_of_this_job(pid):
    try:
        with open(f"/proc/{pid}/environ") as file:
            return os.environ["NOTES"] in file.read()
    except OSError:  # one of another job has ended
        return False

def share():
    import torch
    torch.multiprocessing.set_sharing_strategy("file_system")
    # All that there are: a worker that dies while it waits for its manager's answer makes that manager fail.
    batches = iter(torch.utils.data.DataLoader([torch.zeros(100_000) for _ in range(4)], num_workers=2))
    kept = [next(batches) for _ in range(4)]
    named = [pid for pid in os.listdir("/proc") if pid.isdigit() and name_of(pid) == "torch_shm_manag"]
    managers = [int(pid) for pid in named if is_of_this_job(pid)]
    with open("/proc/self/maps") as file:
        say("files", *{line.split()[5] for line in file if "/dev/shm/torch_" in line})
    say("managers", *managers)
    return batches, kept, managers
"""


def said(job: Job, what: str, cycle: int = 0) -> list[str]:
    """The words that rank 0 said after this one."""
    return job.hear(f"{what} (.+)", ranks=[0], cycle=cycle)[0].split()


# A manager that is stopped does not end before it is continued: the test needs no clock.
CRASHES = """
if CYCLE == 0:
    shared = share()
    for manager in shared[-1]:
        os.kill(manager, signal.SIGSTOP)
    with open(os.environ["NOTES"] + "/managers", "w") as file:
        print(*shared[-1], file=file)
    kill_me(signal.SIGKILL)
with open(os.environ["NOTES"] + "/managers") as file:
    managers = file.read().split()
say("sees", *map(name_of, managers))
for manager in managers:
    os.kill(int(manager), signal.SIGCONT)
    while name_of(manager) == "torch_shm_manag":
        time.sleep(0.01)
shared = share()
kill_me(signal.SIGKILL)
"""


def test_torch_manager_removes_its_files_after_a_crash(jobs: Jobs) -> None:
    """A restart does not wait for it, and the launcher's end does."""
    job = jobs(TENSORS + CRASHES, "--max-restarts", "1", nproc=1)
    job.end(128 + signal.SIGKILL)
    first, last = said(job, "managers"), said(job, "managers", cycle=1)
    (sees,) = job.lines(" sees ")
    assert sees == "rank 0 cycle 1 sees" + " torch_shm_manag" * len(first), "the restart did not wait"
    assert not {int(pid) for pid in first} & {pid for each in job.journal("swept") for pid in each["pids"]}
    assert not [pid for pid in last if alive(int(pid))]
    assert not [name for cycle in (0, 1) for name in said(job, "files", cycle) if os.path.exists(name)]


def test_torch_manager_after_launcher_kill_removes_files(jobs: Jobs) -> None:
    job = jobs(TENSORS + "shared = share()\nwait()", nproc=1)
    files, managers = said(job, "files"), said(job, "managers")
    assert all(map(os.path.exists, files))
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()
    wait_until(lambda: not any(alive(int(pid)) for pid in managers), what="the end of torch's manager")
    assert not [name for name in files if os.path.exists(name)]


# A child that holds the segment ignores SIGTERM, so SIGKILL comes while the tracker has a user.
TRACKED = """
from multiprocessing import get_context, shared_memory
def hold(segment, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    wait()

if CYCLE == 0:
    segment, fork = shared_memory.SharedMemory(create=True, size=4096), get_context("fork")
    ready = fork.Event()
    fork.Process(target=hold, args=(segment, ready)).start()
    ready.wait()
    with open(os.environ["NOTES"] + "/segment", "w") as file:
        file.write("/dev/shm/" + segment.name)
    kill_me(signal.SIGKILL)
with open(os.environ["NOTES"] + "/segment") as file:
    say("segment", "is there" if os.path.exists(file.read()) else "is removed")
"""


def test_resource_tracker_after_crash_removes_segment(jobs: Jobs) -> None:
    """Before the successor starts, which may use the same name."""
    job = jobs(TRACKED, "--max-restarts", "1", nproc=1)
    job.end(0)
    assert job.lines(" segment ") == ["rank 0 cycle 1 segment is removed"]


def test_end_all_helper_is_left_until_it_is_late(spawn: Spawner, tmp_path: Path) -> None:
    """While another process runs, and then for some seconds: one that has a manager's name and does not end."""
    program = tmp_path / "torch_shm_manager"
    shutil.copy(shutil.which("sleep") or "", program)
    helper = spawn([program, "600"])
    helper.wait_for(lambda: kill.managers({helper.pid}))
    other = spawn(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    other.wait_for("ready")
    both = {each.pid: proc.start_time(each.pid) or 0 for each in (helper, other)}
    seen: list[set[int]] = []

    def find() -> dict[int, int]:
        found = {pid: started for pid, started in both.items() if proc.is_running(pid, started)}
        seen.append(set(found))
        return found

    assert kill.end_all(find, grace=0.1, limit=60.0, helpers=0.5) == (set(both), set())
    assert {helper.pid} in seen, "the other one ended first"
    assert (other.wait(), helper.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
