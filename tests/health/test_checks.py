"""Network cards, storage, the machine, clocks and the user's command; and all checks side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.health import ABSENT, GOOD, SICK, WARNING, Finding, cards, host, probe, programs, storage
from holdfast.health.checks import Checks, Wanted
from tests.processes import alive, wait_until


def write_card(folder: Path, name: str, state: str = "4: ACTIVE", rate: int = 400, downed: int = 0) -> None:
    port = folder / name / "ports" / "1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")
    (port / "counters" / "link_downed").write_text(f"{downed}\n")
    (folder / name / "hca_type").write_text("MT4129\n")


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cards, "FOLDER", str(tmp_path))
    for name in "mlx5_0", "mlx5_1":
        write_card(tmp_path, name)
    return tmp_path


def wanted(sysfs: Path, **changes: object) -> Wanted:
    state, down = f"{sysfs}/{{nic}}/ports/1/state", f"{sysfs}/{{dev_name}}/ports/1/counters/link_downed"
    return Wanted(**{"card_states": state, "link_down": down, "seconds": 20.0, **changes})  # type: ignore[arg-type]


def of_cards(checks: Checks) -> list[Finding]:
    return [each for each in checks.run() if each.check == cards.CHECK]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"state": "1: DOWN"}, "the port of mlx5_1 is DOWN, and was ACTIVE at the start"),
        ({"rate": 200}, "mlx5_1 runs at 200 Gb/s, and others of its kind at 400"),
        ({"downed": 2}, "the link of mlx5_1 went down 2 times since the last check"),
    ],
)
def test_a_card_that_gets_sick(sysfs: Path, change: dict[str, object], text: str) -> None:
    """Cards of one kind may run at several speeds on purpose, and a link that went down once is up again."""
    checks = Checks(wanted(sysfs))
    good = [Finding(cards.CHECK, GOOD, "mlx5_0 ACTIVE, mlx5_1 ACTIVE")]
    assert of_cards(checks) == good
    write_card(sysfs, "mlx5_1", **change)  # type: ignore[arg-type]
    is_sick = "rate" not in change
    bad = [Finding(cards.CHECK, SICK if is_sick else WARNING, text, is_hardware=is_sick)]
    assert of_cards(checks) == bad
    assert of_cards(checks) == (good if "downed" in change else bad)


def test_a_card_that_is_gone_and_a_port_that_nobody_uses(sysfs: Path) -> None:
    write_card(sysfs, "mlx5_2", state="1: DOWN", rate=10)
    checks = Checks(wanted(sysfs))
    assert of_cards(checks)[0].verdict == GOOD
    (sysfs / "mlx5_1").rename(sysfs.parent / "elsewhere")
    (finding,) = of_cards(checks)
    assert finding.text == "the port of mlx5_1 is gone, and was ACTIVE at the start"


def test_what_cannot_be_read_and_what_is_not_there_is_said(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(sysfs / "mlx5_1" / "ports" / "1" / "state")
    (finding,) = of_cards(Checks(wanted(sysfs)))
    assert finding.verdict == WARNING and "mlx5_1/ports/1/state: No such file" in finding.text
    monkeypatch.setattr(cards, "FOLDER", str(sysfs / "none"))
    (finding,) = of_cards(Checks(wanted(sysfs)))
    assert finding.verdict == ABSENT
    (finding,) = of_cards(Checks(wanted(sysfs, card_states=None, link_down=None)))
    assert finding.verdict == ABSENT and "enable_nic_healthcheck" in finding.text


# -- storage ------------------------------------------------------------------------------------------------------


def of_storage(**changes: object) -> dict[str, Finding]:
    checks = Checks(Wanted(card_states=None, **{"seconds": 20.0, **changes}))  # type: ignore[arg-type]
    found = [each for each in checks.run() if each.check == storage.CHECK]
    checks.close()
    return {each.what or each.text: each for each in found}


def test_storage(tmp_path: Path) -> None:
    file, missing = tmp_path / "file", str(tmp_path / "missing")
    file.write_text("x")
    found = of_storage(storage_paths=(str(tmp_path), str(file), missing), distributed_storage=True)
    assert [found[path].verdict for path in (str(tmp_path), str(file), missing)] == [GOOD, GOOD, SICK]
    found = of_storage(write_path=str(tmp_path))
    assert found[str(tmp_path)].text == f"{tmp_path} can be written"
    assert {each.name for each in tmp_path.iterdir()} == {"file"}
    assert of_storage(write_path=missing)[missing].verdict == SICK
    assert [each.verdict for each in of_storage().values()] == [ABSENT]


def test_checks_that_hang_are_named_and_delay_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    paths = (str(pipe), str(tmp_path))
    checks = Checks(Wanted(card_states=None, storage_paths=paths, command="sleep 1000", seconds=5.0))
    found = {each.what or each.check: each for each in checks.run()}
    checks.close()
    assert found[str(pipe)].verdict == SICK and "no answer within 5 s" in found[str(pipe)].text
    assert found[str(tmp_path)].verdict == GOOD
    assert found["command"].verdict == SICK
    assert not programs.RUNNING


STALLED = """
import ctypes, os, sys
from holdfast.health.checks import Checks, Wanted
folder, server = sys.argv[1], os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"stalled", os.fsencode(folder), b"fuse", 0, options):
    sys.exit(f"no mount: {os.strerror(ctypes.get_errno())}")
checks = Checks(Wanted(storage_paths=(folder,), card_states=None, seconds=1.0))
print([(each.verdict, each.text) for each in checks.run() if each.check == "storage"])
os.close(server)  # the kernel answers with an error from here on
checks.close()
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_filesystem_whose_server_does_not_answer(tmp_path: Path) -> None:
    """A FUSE filesystem, mounted for this process only, whose server answers no request."""
    command = ["unshare", "--mount", sys.executable, "-c", STALLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "no mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.strip() == str([(SICK, f"{tmp_path}: no answer within 1 s")]), done.stderr


def test_mounts_and_lustre(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("a:/b /my\\040data nfs4 rw 0 0\nc /scratch lustre rw 0 0\nd / ext4 rw 0 0\n")
    assert storage.mounts(str(table)) == ["/my data", "/scratch"]
    health = tmp_path / "health_check"
    assert storage.lustre(str(health)).verdict == ABSENT
    for text, verdict in [("healthy\n", GOOD), ("NOT HEALTHY\n", SICK)]:
        health.write_text(text)
        assert storage.lustre(str(health)).verdict == verdict
    assert storage.reachable(str(tmp_path)).verdict == GOOD
    assert storage.reachable(str(tmp_path / "gone")).verdict == WARNING  # its server did not fail


# -- the command, the machine, clocks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "verdict", "text"),
    [
        ("echo fine", GOOD, "fine"),
        ("true", GOOD, "exit code 0"),
        ("echo first; echo 'card 3 is loose' >&2; exit 4", SICK, "card 3 is loose"),
        ("exit 4", SICK, "exit code 4 of --ft-health-command"),
        ("kill -9 $$", SICK, "exit code -9 of --ft-health-command"),
    ],
)
def test_the_last_line_of_the_command_is_the_reason(command: str, verdict: str, text: str) -> None:
    assert programs.run_command(command, 20.0) == Finding("command", verdict, text)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    finding = programs.run_command(f"sleep 1000 & echo $! > {pid}; wait", 5.0)
    assert (finding.verdict, finding.text) == (SICK, "no answer of --ft-health-command within 5 s")
    child = int(pid.read_text())
    wait_until(lambda: not alive(child), what="the end of the command's child")


def test_nothing_is_started_while_it_is_held() -> None:
    programs.pause(True)
    try:
        assert "ranks are being stopped" in programs.run_command("true", 5.0).text
        with pytest.raises(probe.Unanswered, match="ranks are being stopped"):
            probe.Probe().ask("gpus", 5.0)
    finally:
        programs.pause(False)


def test_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.check(str(tmp_path))[0].verdict == GOOD
    monkeypatch.setattr(host, "LEAST_DISK", 1 << 60)
    (finding,) = host.check(str(tmp_path))
    assert finding.verdict == WARNING and finding.text.startswith("run directory: ")
    assert host.check(str(tmp_path / "gone"))[0].verdict == WARNING


def test_a_clock_that_is_ahead_is_found_by_the_next_node_that_looks() -> None:
    told = [""]

    def swap(text: str) -> str:
        told.append(text)
        return told[-2]

    times = {"a": 100.0, "b": 130.0, "c": 101.0}
    found = {name: host.check_clock(name, swap, lambda at=at: at)[0] for name, at in times.items()}  # type: ignore[misc]
    assert [found[name].verdict for name in "abc"] == [GOOD, GOOD, WARNING]
    assert found["c"].text == "the clock of node b is 29.0 s ahead of this one"
    assert json.loads(told[-1]) == {"node": "c", "at": 101.0}
    assert host.check_clock("a", lambda _: "no JSON")[0].verdict == GOOD


# -- all together -------------------------------------------------------------------------------------------------


def test_storage_is_checked_now_and_then_while_ranks_train(tmp_path: Path) -> None:
    checks = Checks(Wanted(storage_paths=(str(tmp_path),)))
    assert storage.CHECK in {each.check for each in checks.run(trains=True)}
    assert storage.CHECK not in {each.check for each in checks.run(trains=True)}
    assert storage.CHECK in {each.check for each in checks.run()}
