"""The folders incidents/NNNN: one for each incident, whoever comes first, and nobody else's files."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from holdfast.incidents.report import folder
from holdfast.incidents.report.files import FolderError, read_file
from holdfast.incidents.report.record import read_record
from tests.incidents.cases_for_reports import hang, two_nodes
from tests.processes import Spawner

CLAIMS = """
import os, sys
from holdfast.incidents.report.folder import claim
run_dir, run_id, cycles, gate = sys.argv[1:]
os.read(int(gate), 1)
for cycle in range(int(cycles)):
    print(claim(run_dir, run_id, cycle))
"""


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_folder_for_each_cycle(tmp_path: Path) -> None:
    first = folder.claim(str(tmp_path), "run-1", 0)
    assert folder.claim(str(tmp_path), "run-1", 0) == first == f"{tmp_path}/incidents/0001"
    second = folder.claim(str(tmp_path), "run-1", 1)
    assert folder.claim(str(tmp_path), "run-2", 0) == f"{tmp_path}/incidents/0003"
    assert folder.find(str(tmp_path), "run-1", 1) == second
    assert folder.find(str(tmp_path), "run-1", 7) is None
    assert [(kept.number, kept.run_id, kept.cycle) for kept in folder.all_incidents(str(tmp_path))] == [
        (1, "run-1", 0),
        (2, "run-1", 1),
        (3, "run-2", 0),
    ]
    assert mode(tmp_path / "incidents") == mode(first) == 0o700
    assert os.listdir(first) == ["incident"] and mode(f"{first}/incident") == 0o600


def test_a_run_id_that_is_used_again_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    first = folder.claim(str(tmp_path), "none", 0)
    begun = next(kept.at for kept in folder.all_incidents(str(tmp_path))) + 60
    assert folder.find(str(tmp_path), "none", 0, since=begun) is None
    assert folder.claim(str(tmp_path), "none", 0, since=begun) != first


def test_launchers_at_the_same_time_agree(tmp_path: Path, spawn: Spawner) -> None:
    """Eight processes, two jobs, ten cycles each: twenty folders, each of one job and cycle."""
    run_ids = ["a", "b"] * 4
    gate, held = os.pipe()
    command = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    processes = [spawn([*command, run_id, "10", str(gate)], pass_fds=[gate]) for run_id in run_ids]
    os.close(gate)
    os.close(held)  # all begin now
    told: dict[tuple[str, int], set[str]] = {}
    for run_id, process in zip(run_ids, processes, strict=True):
        assert process.wait() == 0, process.err()
        for cycle, path in enumerate(process.out().split()):
            told.setdefault((run_id, cycle), set()).add(path)
    assert all(len(paths) == 1 for paths in told.values())
    assert len({path for paths in told.values() for path in paths}) == 20
    assert sorted(os.listdir(tmp_path / "incidents")) == [f"{number:04d}" for number in range(1, 21)]


def test_a_report_and_fragments(tmp_path: Path) -> None:
    case, verdict = two_nodes()
    path = folder.claim(str(tmp_path), "run-1", 1)
    for node in reversed(case.nodes):
        folder.write_fragment(path, node.node, node)
    assert folder.read_fragments(path) == list(case.nodes)
    folder.write_report(path, case, verdict)
    names = sorted(os.listdir(path))
    assert names == [
        "fragment-gpu-11-0.json",
        "fragment-gpu-12-1.json",
        "incident",
        "incident.json",
        "report.txt",
    ]
    assert {mode(f"{path}/{name}") for name in names} == {0o600}
    record = read_record(read_file(path, "incident.json"), "x")
    assert (record.number, record.run_id, record.cycle) == (1, "run-1", 1)
    assert (record.case, record.verdict) == (case, verdict)
    text = Path(path, "report.txt").read_text()
    assert text.startswith("HANG: rank 5") and path in text


def test_a_node_is_no_path(tmp_path: Path) -> None:
    case, _ = hang(2, 1)
    path = folder.claim(str(tmp_path), "run-1", 1)
    folder.write_fragment(path, "../../x/" + "y" * 300, case.nodes[0])
    (name,) = set(os.listdir(path)) - {"incident"}
    assert name.startswith("fragment-.._.._x_yyy")


def test_what_is_damaged_or_strange_is_left_out(tmp_path: Path) -> None:
    case, _ = hang(2, 1)
    path = folder.claim(str(tmp_path), "run-1", 0)
    folder.write_fragment(path, "a", case.nodes[0])
    Path(path, "fragment-b-1.json").write_text("{")
    os.mkfifo(f"{path}/fragment-c-2.json")
    Path(path, "fragment-d-3.json").symlink_to("/dev/zero")
    os.mkdir(f"{path}/fragment-e-4.json")
    assert folder.read_fragments(path) == list(case.nodes)
    (tmp_path / "incidents" / "0007").write_text("a file")
    (tmp_path / "incidents" / "0008").mkdir()
    (tmp_path / "incidents" / "0009").symlink_to(path)
    (tmp_path / "incidents" / "notes").mkdir()
    assert [kept.number for kept in folder.all_incidents(str(tmp_path))] == [1]
    assert folder.claim(str(tmp_path), "run-1", 1).endswith("/0010")


@pytest.mark.parametrize("plant", ["link", "file", "writable"])
def test_a_planted_folder_is_refused(tmp_path: Path, plant: str) -> None:
    parent = tmp_path / "incidents"
    if plant == "link":
        (tmp_path / "elsewhere").mkdir()
        parent.symlink_to(tmp_path / "elsewhere")
    elif plant == "file":
        parent.write_text("")
    else:
        parent.mkdir()
        parent.chmod(0o777)
    with pytest.raises(FolderError) as error:
        folder.claim(str(tmp_path), "run-1", 0)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{parent} ") and line.endswith("no report is kept there. Remove it.")
    if plant == "link":
        assert os.listdir(tmp_path / "elsewhere") == []
        assert folder.all_incidents(str(tmp_path)) == []


def test_a_file_of_a_stranger_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    path = folder.claim(str(tmp_path), "run-1", 0)
    planted = Path(path, "report.txt")
    planted.write_text("all is well")
    os.chown(planted, 12345, 12345)
    # Root may read everything; the file's owner is neither us nor the folder's owner.
    with pytest.raises(FolderError, match="belongs to user 12345"):
        read_file(path, "report.txt")


def test_a_report_replaces_a_planted_link(tmp_path: Path) -> None:
    case, verdict = hang(2, 1)
    path = folder.claim(str(tmp_path), "run-1", 0)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path(path, "report.txt").symlink_to(victim)
    folder.write_report(path, case, verdict)
    assert victim.read_text() == "mine"
    assert not Path(path, "report.txt").is_symlink()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = folder.claim(str(tmp_path), "run-1", 0)
    os.mkdir(f"{path}/report.txt")
    case, verdict = hang(2, 1)
    with pytest.raises(OSError):
        folder.write_report(path, case, verdict)
    assert sorted(os.listdir(path)) == ["incident", "incident.json", "report.txt"]
