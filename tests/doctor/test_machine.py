"""The looks, on this machine, and what they see of trouble that is made on purpose."""

from __future__ import annotations

import os
import pwd
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from holdfast.doctor.finding import NOTE, PROBLEM
from holdfast.doctor.judgements import clock, folders, shared_memory
from holdfast.doctor.looks import cgroups, clocks, kernel, leftovers, limits, network, places
from holdfast.fault_tolerance.launcher.ranks import stale
from holdfast.journal.event import encode
from holdfast.journal.writer import file_name

GROUPS = "5:pids:/job/one\n4:cpu,cpuacct:/\n0::/user.slice\n"
MOUNTS = """\
31 1 0:28 / {here} rw - tmpfs tmpfs rw
36 31 0:34 / {here}/pids rw shared:5 - cgroup cgroup rw,pids
37 31 0:35 / {here}/cpu rw - cgroup cgroup rw,cpu,cpuacct
38 31 0:36 / {here}/unified rw - cgroup2 cgroup2 rw
"""


def test_shared_memory_has_room_or_has_not(small_disk: Path) -> None:
    found = places.shared_memory(1, str(small_disk))
    assert (found.filesystem, found.full, found.size) == ("tmpfs", True, 64 * 1024)
    assert shared_memory.judge(found, 1).verdict == PROBLEM
    assert list(small_disk.iterdir()) == []


def test_shared_memory_that_is_not_there_or_on_a_disk(tmp_path: Path) -> None:
    missing = places.shared_memory(1, str(tmp_path / "shm"))
    assert missing.error == "No such file or directory"
    here = places.shared_memory(1, str(tmp_path))
    assert here.error == "" and here.free > 0
    if here.filesystem != "tmpfs":
        assert shared_memory.judge(here, 1).verdict == NOTE


def test_a_folder_that_cannot_be_written(tmp_path: Path, small_disk: Path) -> None:
    assert places.why_not_written(str(tmp_path), locked=True) == ""
    assert places.why_not_written(str(tmp_path / "nowhere")) == "No such file or directory"
    assert places.why_not_written("/proc") != ""
    assert places.why_not_written(str(small_disk), 1 << 20) == "No space left on device"


def test_run_folders_are_judged_as_the_launcher_would(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b" / "holdfast"
    assert places.run_folder(str(wanted)).error == ""
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert places.run_folder(str(tmp_path / "file")).error == "is not a directory"
    assert places.run_folder(str(tmp_path / "link")).error.startswith("is a symbolic link (to ")
    assert places.run_folder(str(tmp_path / "file" / "x")).error == f"{tmp_path / 'file'}: Not a directory"
    home = str(tmp_path / "home")
    assert places.run_folder(f"{home}/.local", home=home).error == f"there is no home folder {home}"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "can be written by others" in places.run_folder(str(open_to_all)).error


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to somebody else needs root")
def test_a_run_folder_of_somebody_else(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    assert (
        places.run_folder(str(tmp_path)).error
        == f"belongs to user {pwd.getpwuid(65534).pw_name}, not to root"
    )


def test_a_tmpdir_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    found = places.temporary()
    assert found.error == "" and found.path != str(tmp_path / "nowhere")
    assert "nowhere cannot be used" in folders.temporary(found, os.environ["TMPDIR"]).what


def test_the_tightest_level_of_a_group_binds(tmp_path: Path) -> None:
    files = {
        "proc/cgroup": GROUPS,
        "proc/mountinfo": MOUNTS.format(here=tmp_path),
        "pids/pids.max": "100\n",
        "pids/pids.current": "90\n",
        "pids/job/pids.max": "max\n",
        "pids/job/one/pids.max": "50\n",
        "pids/job/one/pids.current": "20\n",
        "cpu/cpu.cfs_quota_us": "150000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "unified/user.slice/memory.max": "1000\n",
        "unified/user.slice/memory.current": "900\n",
        "unified/user.slice/memory.stat": "anon 500\ninactive_file 400\n",
        "unified/user.slice/cpu.max": "max 100000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = str(tmp_path / "proc")
    room = cgroups.pids(own)
    assert room is not None and (room.limit, room.used, room.left) == (100, 90, 10)
    assert cgroups.cpus(own) == 1.5
    memory = cgroups.memory(own)
    assert memory is not None and (memory.limit, memory.used) == (1000, 500)


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/../../elsewhere\n")
    (tmp_path / "mountinfo").write_text(f"30 29 0:26 / {tmp_path}/cg ro - cgroup2 cgroup rw\n")
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg" / "cpu.max").write_text("50000 100000\n")
    assert cgroups.cpus(str(tmp_path)) == 0.5
    assert cgroups.memory(str(tmp_path)) is None


def test_the_limits_of_this_process() -> None:
    assert limits.limit(resource.RLIMIT_NOFILE)[0] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert all(room.left > 0 for room in limits.processes())
    assert limits.available_memory() > 1 << 20
    assert limits.core_files().pattern
    quota = cgroups.cpus()
    assert quota is None or quota > 0


def test_loopback_and_who_listens() -> None:
    assert network.loopback() == ""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[1] in network.listening_ports()
    assert network.loopback("192.0.2.1") != ""  # an address of documentation
    first, last = network.port_range()
    assert 0 < first < last < 65536


def test_names_and_their_addresses() -> None:
    assert "127.0.0.1" in network.name("localhost").addresses
    assert network.name("192.0.2.1").foreign == ["192.0.2.1"]
    assert network.name("127.0.0.1").foreign == []
    assert network.name("a" * 70 + ".invalid").error
    assert network.own_name().name == socket.gethostname()
    assert "lo" in network.present_interfaces()
    assert network.wanted_interfaces({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": ""}) == {
        "GLOO_SOCKET_IFNAME": "lo"
    }


def test_the_clock_and_the_last_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = clocks.offset()
    found = clocks.look(before)
    assert abs(found.jumped) < 0.05 and found.since_journal is None
    assert found.since_boot > 0 and found.newest_file < found.now
    assert clock.judge(clocks.look(before - 10)).verdict == PROBLEM

    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    run = tmp_path / "holdfast" / "run"
    run.mkdir(parents=True)
    journal = run / file_name(socket.gethostname())
    set_back = 30.0  # the clock was ahead by so much when the journal was written
    mono = time.monotonic() - 1
    journal.write_bytes(encode("run_end", {}, t=time.time() - 1 + set_back, mono=mono, node="a"))
    found = clocks.look(clocks.offset())
    assert found.since_journal == pytest.approx(1, abs=0.5)
    assert found.jumped_since == pytest.approx(-set_back, abs=0.1)

    journal.write_bytes(encode("run_end", {}, t=boot - 1000, mono=mono, node="a"))  # of an earlier boot
    assert clocks.look(clocks.offset()).since_journal is None


def test_the_kernel_is_tried_and_nothing_stays() -> None:
    errors, seized = kernel.look()
    assert errors == dict.fromkeys(errors, "")
    assert set(errors) == {"pidfd", "subreaper", "pdeathsig", "proc", "flock"}
    if not seized.scope:
        assert seized.error == ""


def test_boards_of_dead_and_living_launchers(tmp_path: Path) -> None:
    made = [tempfile.mkdtemp(prefix=stale.PREFIX, dir=tmp_path) for _ in range(3)]
    bases = [str(tmp_path), str(tmp_path), str(tmp_path / "nowhere")]
    os.close(stale.own(made[0]))
    held = stale.own(made[1])
    assert leftovers.boards(bases) == ([made[0]], 1)  # the third was made by hand: nobody's
    os.close(held)
    assert leftovers.boards(bases) == (sorted(made[:2]), 0)
    assert all(map(os.path.exists, made))


def test_a_zygote_whose_launcher_is_gone() -> None:
    sleeps = "import sys; print(1, flush=True); sys.stdin.read()"
    found = []
    for launcher in (os.getpid(), 2**22 + 1):  # more than any number of a process
        name = f"holdfast: standby of launcher {launcher}"
        process = subprocess.Popen(
            [name, "-c", sleeps], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None and process.stdout.readline()
            found.append(process.pid in {orphan.pid for orphan in leftovers.orphans()})
    assert found == [False, True]


def test_old_runs_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal-x.jsonl").write_bytes(b"x" * 1000)
    (tmp_path / "preload").mkdir()
    (tmp_path / "file").touch()
    os.utime(tmp_path / "a", (time.time() - 5000,) * 2)
    found = leftovers.runs([str(tmp_path), str(tmp_path / "nowhere")])
    assert (found.number, found.size, found.folders) == (2, 2000, [str(tmp_path)])
    assert found.oldest == pytest.approx(5000, abs=5)
