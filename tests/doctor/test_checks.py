"""The checks as tables of values; and the facts of this machine that need an arrangement of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.doctor import checks, facts, table
from holdfast.doctor.checks import check_host_name, check_localhost, check_warm_start
from holdfast.doctor.facts import Folder, Interpreter, Name
from holdfast.doctor.import_trial import judge
from holdfast.doctor.table import GIB, MIB, NOTE, OK, PROBLEM, Finding, note, ok, problem
from holdfast.fault_tolerance.board.values import DIRECTORY_PREFIX
from holdfast.fault_tolerance.launcher.ranks import boards
from holdfast.fault_tolerance.processes import cgroups
from holdfast.fault_tolerance.processes.cgroups import Limit

OWN = Interpreter("/venv/bin/python", (3, 11, 7), "/venv", "2.13.0+cpu")
OTHER = Interpreter("/usr/bin/python3", (3, 12, 1), "/usr", "2.13.0")
SHM = Folder("/dev/shm", free=GIB, size=GIB)
FULL = os.strerror(28)
HOME, SUBSTITUTE = Folder("/home/a/holdfast", free=GIB), Folder("/tmp/holdfast-1", free=GIB)
BAD = replace(HOME, error="no")
NO_TORCH = problem("torch", "none", "do")
SLOWER = "No action needed. Restarts are slower because each rank imports"
ORPHANS = [(7, "train.py"), (8, "sleep 9")]
PTRACE = {"ptrace": "Operation not permitted"}
in_run_directory = partial(checks.check_run_directory, None)


def expect(finding: Finding, verdict: str, part: str) -> None:
    assert (finding.verdict, part in f"{finding.what}. {finding.advice}") == (verdict, True), finding
    assert bool(finding.advice) == (verdict != OK)


def python(ranks: Interpreter) -> Finding:
    return checks.check_python(lambda: OWN, lambda: ranks)[0]


def torch(version: str) -> Finding:
    ranks = replace(OWN, torch=version)
    return checks.check_python(lambda: ranks, lambda: ranks)[1]


def memory(available: int, cgroup: Limit | None = None) -> Finding:
    return checks.check_memory(8, lambda: available, lambda: cgroup)


@pytest.mark.parametrize(
    ("finding", "verdict", "part"),
    [
        (python(OWN), OK, "3.11.7 (/venv/bin/python)"),
        (python(replace(OWN, executable="/venv/bin/python3.11")), OK, ""),
        (python(OTHER), NOTE, "3.12.1 (/usr/bin/python3)"),
        (python(replace(OTHER, version=(3, 9, 18))), PROBLEM, "is Python 3.9.18, older than 3.10"),
        (python(Interpreter("ls", error="no Python")), PROBLEM, "PYTHON_EXEC=ls: no Python"),
        (torch("2.13.1"), OK, "2.13.1"),
        (torch("2.8.0"), OK, ""),
        (torch("2.13.0a0+gitabc"), OK, ""),
        (torch("2.16.0"), NOTE, "newer"),
        (torch("2.7.1+cu130"), PROBLEM, "too old"),
        (torch(""), PROBLEM, "not installed for /venv/bin/python"),
        (memory(16 * GIB), OK, "16.0 GiB available, 2.0 GiB for each of 8 ranks"),
        (memory(16 * GIB, Limit("max", 32 * GIB, 0)), OK, "16.0 GiB available, "),
        (memory(16 * GIB, Limit("a", 4 * GIB, GIB)), NOTE, "3.0 GiB available (by a, 1.0 GiB of 4.0 GiB)"),
        (memory(3 * GIB), NOTE, "384.0 MiB for each of 8"),
        (memory(GIB), PROBLEM, "the kernel will kill ranks"),
        (check_warm_start([ok("torch", "2.13"), note("ptrace", "no", "do")], ""), OK, "yes"),
        (check_warm_start([], "PYTHON_EXEC names another"), NOTE, "ranks start cold: PYTHON_EXEC names"),
        (check_warm_start([NO_TORCH, problem("kernel", "no", "do")], ""), NOTE, "see `torch`; see `kernel`"),
        (check_warm_start([problem("python", "none", "do")], ""), NOTE, "see `python`"),
        (check_warm_start([note("trial", "x", "do")], ""), NOTE, f"{SLOWER} torch itself"),
        (judge(2.0, 0.02), OK, "imported in 2.0 s, a rank forked in 20 ms"),
        (judge(2.0, 0.02, missing={"apex": "no module"}), PROBLEM, "cannot be imported: apex (no module)"),
        (judge(2.0, 0.02, refused={"p.x": "it starts a thread"}), NOTE, f"{SLOWER} p.x itself"),
        (judge(2.0, 0.02, hides=["yaml"]), NOTE, "hides the installed yaml"),
        (judge(2.0, reason="imports take longer"), NOTE, "no rank can be forked: imports take longer"),
    ],
)
def test_check_of_several_facts(finding: Finding, verdict: str, part: str) -> None:
    expect(finding, verdict, part)


def processes(left: int) -> list[Limit]:
    return [Limit("RLIMIT_NPROC", 10**6, 0), Limit("cgroup pids.max", 2000, 2000 - left)]


def room(left: int) -> str:
    return f"room for {left} more processes and threads (cgroup pids.max: {2000 - left} of 2000)"


@pytest.mark.parametrize(
    ("check", "found", "verdict", "part"),
    [
        (partial(checks.check_shm, 8), SHM, OK, "1.0 GiB free of 1.0 GiB, writable"),
        (partial(checks.check_shm, 1), replace(SHM, free=64 * MIB, size=64 * MIB), NOTE, "bus error"),
        (partial(checks.check_shm, 1), replace(SHM, filesystem="ext4"), NOTE, "is ext4: a heartbeat"),
        (partial(checks.check_shm, 1), replace(SHM, error="no"), PROBLEM, "/dev/shm: no;"),
        (partial(checks.check_processes, 64), [], OK, "no limit"),
        (partial(checks.check_processes, 1), processes(1000), OK, room(1000)),
        (partial(checks.check_processes, 8), processes(1000), OK, room(1000)),
        (partial(checks.check_processes, 8), processes(500), NOTE, room(500)),
        (partial(checks.check_processes, 8), processes(88), NOTE, room(88)),
        (partial(checks.check_processes, 8), processes(87), PROBLEM, room(87)),
        (partial(checks.check_processes, 1), processes(31), PROBLEM, room(31)),
        (partial(checks.check_open_files, 64), (None, None), OK, "no limit"),
        (partial(checks.check_open_files, 8), (1024, 4096), OK, ""),
        (partial(checks.check_open_files, 8), (256, 4096), NOTE, "ulimit -n 4096"),
        (partial(checks.check_open_files, 8), (256, 1 << 30), NOTE, "ulimit -n 65536"),
        (partial(checks.check_open_files, 64), (1024, 4096), PROBLEM, "ulimit -n 4096"),
        (partial(checks.check_open_files, 8), (100, 100), PROBLEM, "Raise the hard limit"),
        (check_localhost, Name("localhost", ["127.0.0.1"]), OK, "resolves to 127.0.0.1"),
        (check_localhost, Name("localhost", ["::1", "127.0.0.1"]), OK, ""),
        (check_localhost, Name("localhost", error="unknown"), PROBLEM, "does not resolve: unknown"),
        (check_localhost, Name("localhost", ["10.0.0.7"]), PROBLEM, "10.0.0.7 is not the loopback of this"),
        (check_localhost, Name("localhost", ["::1"], ["::1"]), PROBLEM, "where this machine cannot listen"),
        (check_localhost, Name("localhost", ["::1", "127.0.0.1"], ["::1"]), NOTE, "fails once"),
        (check_host_name, Name("gpu-1", ["10.0.0.7"]), OK, "'gpu-1' resolves to 10.0.0.7"),
        (check_host_name, Name("gpu-1", ["fe80::1%eth0"]), OK, ""),
        (check_host_name, Name("gpu-1", ["127.0.1.1"]), NOTE, "a loopback address"),
        (check_host_name, Name("gpu-1", ["127.0.1.1", "10.0.0.7"]), OK, ""),
        (check_host_name, Name("gpu-1", error="unknown"), NOTE, "gloo uses the loopback"),
        (check_host_name, Name("gpu-1", ["1.1.1.9"], ["1.1.1.9"]), NOTE, "1.1.1.9 is not an address of"),
        (checks.check_loopback, "", OK, "127.0.0.1"),
        (checks.check_loopback, "Network is unreachable", PROBLEM, "Network is unreachable"),
        (checks.check_boards, ([], 1), OK, "none; running jobs of this user: 1"),
        (checks.check_boards, (["/a", "/b"], 0), NOTE, "2 directories of killed launchers: /a, /b"),
        (checks.check_orphans, [], OK, "none"),
        (checks.check_orphans, ORPHANS, PROBLEM, "2 processes of dead jobs: 7 (train.py), 8 (sleep 9)"),
        (checks.check_orphans, ORPHANS, PROBLEM, "kill 7 8"),
        (in_run_directory, [HOME, SUBSTITUTE], OK, "/home/a/holdfast: writable, 1.0 GiB free"),
        (in_run_directory, [replace(HOME, free=MIB), SUBSTITUTE], NOTE, "Free some space"),
        (in_run_directory, [BAD, SUBSTITUTE], NOTE, "journals go to /tmp/holdfast-1"),
        (in_run_directory, [BAD, replace(SUBSTITUTE, error="not either")], PROBLEM, "not either"),
        (in_run_directory, [BAD], PROBLEM, "ft_launcher will not start"),
    ],
)
def test_check_of_one_fact(check: Callable[..., Finding], found: Any, verdict: str, part: str) -> None:
    expect(check(lambda *_: found), verdict, part)


def test_check_python_without_program_is_a_problem() -> None:
    unknown = replace(OWN, executable="")
    (finding,) = checks.check_python(lambda: unknown, lambda: unknown)
    expect(finding, PROBLEM, "is not known. Let this user read and run it")


@pytest.mark.parametrize("name", checks.NEEDED)
def test_check_kernel_names_what_is_missing(name: str) -> None:
    kernel, ptrace = checks.check_kernel(lambda: {name: "Function not implemented"})
    expect(kernel, PROBLEM, f"missing: {checks.NEEDED[name]} (Function not implemented)")
    expect(ptrace, OK, "can be taken")


@pytest.mark.parametrize(
    ("errors", "scope", "is_capable", "verdict", "part"),
    [
        ({}, 1, False, OK, "can be taken"),
        (PTRACE, 1, False, NOTE, "ptrace_scope is 1: only ancestors of a process may"),
        (PTRACE, 2, False, NOTE, "sysctl kernel.yama.ptrace_scope=0"),
        (PTRACE, 3, False, NOTE, "at the next boot"),
        (PTRACE, 0, False, NOTE, "(Operation not permitted)"),
        (PTRACE, 1, True, NOTE, "(Operation not permitted)"),
        (PTRACE, None, False, NOTE, "docker run --cap-add"),
    ],
)
def test_check_ptrace(
    errors: dict[str, str], scope: int | None, is_capable: bool, verdict: str, part: str
) -> None:
    kernel, ptrace = checks.check_kernel(lambda: errors, lambda: scope, lambda: is_capable)
    expect(kernel, OK, "pidfds")
    expect(ptrace, verdict, part)


@pytest.mark.parametrize(
    ("variable", "value", "verdict"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", OK),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", OK),
        ("GLOO_SOCKET_IFNAME", "eth", PROBLEM),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "eth", OK),
        ("NCCL_SOCKET_IFNAME", "=eth", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "=eth0", OK),
        ("NCCL_SOCKET_IFNAME", "^docker", OK),
        ("NCCL_SOCKET_IFNAME", "ib", PROBLEM),
    ],
)
def test_check_interfaces(variable: str, value: str, verdict: str) -> None:
    (finding,) = checks.check_interfaces(lambda: {variable: value}, lambda: ["lo", "eth0"])
    expect(finding, verdict, f"{variable}={value}")


def test_checks_that_block_or_fail_become_notes() -> None:
    gate, open_gate = os.pipe()

    def fail() -> Finding:
        raise PermissionError(13, "Permission denied")

    run: dict[str, Callable[[], Finding | list[Finding]]] = {
        "blocks": lambda: ok("blocks", str(os.read(gate, 1))),
        "blocks too": lambda: ok("blocks too", str(os.read(gate, 1))),
        "fails": fail,
        "works": lambda: [ok("works", "7"), ok("works", "8")],
    }
    found = checks.within_deadline(run, 3.0)
    os.write(open_gate, b"12")
    assert [(each.check, each.verdict, each.what) for each in found] == [
        ("blocks", NOTE, "not checked: no answer within 3 s"),
        ("blocks too", NOTE, "not checked: no answer within 3 s"),
        ("fails", NOTE, "not checked: Permission denied"),
        ("works", OK, "7"),
        ("works", OK, "8"),
    ]
    os.close(open_gate)
    os.close(gate)


@pytest.mark.parametrize(
    ("found", "summary", "verdict"),
    [
        ([ok("a", "fine")], "no problem in 1 check", OK),
        ([ok("a", "fine"), note("b", "hm", "Do")], "1 note in 2 checks", NOTE),
        ([problem("a", "bad", "Do"), note("b", "hm", "Do")], "1 problem and 1 note in 2 checks", PROBLEM),
    ],
)
def test_report_has_a_summary(found: list[Finding], summary: str, verdict: str) -> None:
    assert table.report(found).splitlines()[-1] == summary
    assert table.worst(found) == verdict


def test_report_has_one_line_for_each_finding() -> None:
    lines = table.report([problem("check", "a\nb\x1b[0m", "Do\rthis")]).splitlines()
    assert lines[0] == "problem  check  a\\nb\\x1b[0m. Do\\rthis"
    assert len(lines) == 2


# -- Facts


def test_shared_memory_without_room(small_disk: Path, tmp_path: Path) -> None:
    found = facts.shared_memory(1, str(small_disk))
    assert (found.filesystem, found.error, found.size) == ("tmpfs", FULL, 64 * 1024)
    assert list(small_disk.iterdir()) == []
    assert facts.shared_memory(1, str(tmp_path / "shm")).error == "No such file or directory"


def test_run_folder_is_judged_as_by_the_launcher(tmp_path: Path) -> None:
    assert facts.run_folder(str(tmp_path / "a" / "b")).error == ""
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert facts.run_folder(str(tmp_path / "file")).error == "is not a directory"
    assert facts.run_folder(str(tmp_path / "link")).error.startswith("is a symbolic link (to ")
    assert facts.run_folder(str(tmp_path / "file" / "x")).error == f"{tmp_path / 'file'}: Not a directory"
    tmp_path.chmod(0o777)
    assert "can be written by others" in facts.run_folder(str(tmp_path)).error


GROUPS = "5:pids:/job/one\n0::/user.slice\n"
MOUNTS = """\
31 1 0:28 / {here} rw - tmpfs tmpfs rw
36 31 0:34 / {here}/pids rw shared:5 - cgroup cgroup rw,pids
38 31 0:36 / {here}/unified rw - cgroup2 cgroup2 rw
"""


def test_tightest_level_of_a_control_group_binds(tmp_path: Path) -> None:
    files = {
        "proc/cgroup": GROUPS,
        "proc/mountinfo": MOUNTS.format(here=tmp_path),
        "pids/pids.max": "100\n",
        "pids/pids.current": "90\n",
        "pids/job/pids.max": "max\n",
        "pids/job/one/pids.max": "50\n",
        "pids/job/one/pids.current": "20\n",
        "unified/user.slice/memory.max": "1000\n",
        "unified/user.slice/memory.current": "900\n",
        "unified/user.slice/memory.stat": "anon 500\ninactive_file 400\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = str(tmp_path / "proc")
    assert cgroups.pids(own) == Limit("cgroup pids.max", 100, 90)
    assert cgroups.memory(own) == Limit("cgroup memory.max", 1000, 500)


def test_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/../../elsewhere\n")
    (tmp_path / "mountinfo").write_text(f"30 29 0:26 / {tmp_path}/cg ro - cgroup2 cgroup rw\n")
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg" / "pids.max").write_text("30\n")
    (tmp_path / "cg" / "pids.current").write_text("7\n")
    assert cgroups.pids(str(tmp_path)) == Limit("cgroup pids.max", 30, 7)
    assert cgroups.memory(str(tmp_path)) is None


def test_ranks_interpreter_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (tmp_path / "json.py").write_text("raise SystemExit('a file in the current folder was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(facts, "PROGRAM_SECONDS", 60.0)  # it may wait for a core
    found = facts.ranks_interpreter({"PYTHON_EXEC": str(tmp_path / "venv" / "bin" / "python")})
    assert (found.error, found.prefix, found.torch) == ("", str(tmp_path / "venv"), "")
    assert facts.ranks_interpreter({}) == facts.own_interpreter()
    assert facts.ranks_interpreter({"PYTHON_EXEC": "/no/python"}).error == "there is no such program"
    assert facts.ranks_interpreter({"PYTHON_EXEC": "ls"}).error == "it is not a Python"


def test_board_directories_of_dead_and_running_launchers(tmp_path: Path) -> None:
    made = [tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=tmp_path) for _ in range(3)]
    bases = [str(tmp_path), str(tmp_path), str(tmp_path / "nowhere")]
    os.close(boards.lock_directory(made[0]))
    held = boards.lock_directory(made[1])
    assert facts.board_directories(bases) == ([made[0]], 1)  # the third has no owner
    os.close(held)
    assert facts.board_directories(bases) == (sorted(made[:2]), 0)


def test_orphans_include_zygotes_without_launcher(tmp_path: Path) -> None:
    standby = tmp_path / "hf-standby"
    standby.symlink_to(sys.executable)
    sleeps = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    below = f"import subprocess; subprocess.run([{str(standby)!r}, '-c', {sleeps!r}])"
    found = []
    for line in ([sys.executable, "-c", below, "ft_launcher"], [standby, "-c", sleeps]):
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            found.append(pid in {orphan for orphan, _ in facts.orphans()})
    assert found == [False, True]
