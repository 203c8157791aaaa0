"""The directories incidents/NNNN: one for each incident, its files whole, and none of another origin used."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.incidents.evidence import Case, TriggerKind
from holdfast.incidents.report import store
from holdfast.incidents.report.store import IncidentError, Record, read_record, record_text, write_report
from tests.incidents.cases_for_reports import FIXTURES, NAMES, evidence, judged
from tests.processes import Spawner

ALLOCATES = """
import os, sys
from holdfast.incidents.report.store import allocate_incident_dir
run_dir, gate, run_id = sys.argv[1:]
os.read(int(gate), 1)
for cycle in range(10):
    print(allocate_incident_dir(run_dir, run_id, cycle))
"""


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def allocated(folder: Path, run_id: str = "run-1", cycle: int = 0, **since: float) -> str:
    return store.allocate_incident_dir(str(folder), run_id, cycle, **since)


def text_of(name: str) -> str:
    """A record of this fixture."""
    case, judgement = judged(name)
    return record_text(Record(3, "run-1", 2, 1_800_000_000.5, judgement, case))


# -- directories -----------------------------------------------------------------------------------------------


def test_allocate_each_cycle_gets_its_own_directory(tmp_path: Path) -> None:
    first = allocated(tmp_path)
    assert allocated(tmp_path) == first == f"{tmp_path}/incidents/0001"
    second = allocated(tmp_path, cycle=1)
    assert allocated(tmp_path, "run-2") == f"{tmp_path}/incidents/0003"
    found = store.incident_in(str(tmp_path), "0002")
    assert found and (found.path, found.number, found.run_id, found.cycle) == (second, 2, "run-1", 1)
    assert [store.incident_in(str(tmp_path), name) for name in ("0004", "", "..")] == [None] * 3
    assert mode(tmp_path / "incidents") == mode(first) == 0o700
    assert os.listdir(first) == ["incident"] and mode(f"{first}/incident") == 0o600


def test_allocate_reused_run_id_gets_a_new_directory(tmp_path: Path) -> None:
    first = allocated(tmp_path, "none")
    stored = store.open_incident(first)
    assert stored and allocated(tmp_path, "none", since=stored.at + 60) != first


def test_allocate_concurrent_launchers_agree(tmp_path: Path, spawn: Spawner) -> None:
    """Eight processes, two jobs, ten cycles each: twenty directories, each of one job and cycle."""
    run_ids = ["a", "b"] * 4
    gate, held = os.pipe()
    command = [sys.executable, "-c", ALLOCATES, str(tmp_path), str(gate)]
    processes = [spawn([*command, run_id], pass_fds=[gate]) for run_id in run_ids]
    os.close(gate)
    os.close(held)  # all begin now
    found = []
    for process in processes:
        assert process.wait() == 0, process.err()
        found.append(process.out().split())
    assert found == found[:2] * 4, "those of one job agree"
    assert len({*found[0], *found[1]}) == 20
    assert sorted(os.listdir(tmp_path / "incidents")) == [f"{number:04d}" for number in range(1, 21)]


@pytest.mark.parametrize("plant", ["link", "file", "writable"])
def test_allocate_planted_parent_is_refused(tmp_path: Path, plant: str) -> None:
    parent = tmp_path / "incidents"
    if plant == "link":
        (tmp_path / "elsewhere").mkdir()
        parent.symlink_to(tmp_path / "elsewhere")
    elif plant == "file":
        parent.write_text("")
    else:
        parent.mkdir()
        parent.chmod(0o777)
    with pytest.raises(IncidentError) as error:
        allocated(tmp_path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{parent} ") and line.endswith("no report is stored there. Remove it.")
    if plant == "link":
        assert os.listdir(tmp_path / "elsewhere") == []
        (tmp_path / "job").mkdir()
        os.rename(allocated(tmp_path / "job"), tmp_path / "elsewhere" / "0001")
        assert store.incident_in(str(tmp_path), "0001") is None


def test_incidents_leave_out_foreign_files(tmp_path: Path) -> None:
    path, folder = allocated(tmp_path), tmp_path / "incidents"
    (folder / "0007").write_text("a file")
    (folder / "0008").mkdir()
    (folder / "0009").symlink_to(path)
    (folder / "notes").mkdir()
    found = [store.incident_in(str(tmp_path), name) for name in sorted(os.listdir(folder))]
    assert [each.number for each in found if each] == [1]
    assert allocated(tmp_path, cycle=1).endswith("/0010")


# -- reports and fragments -------------------------------------------------------------------------------------


def test_report_and_fragments_are_read_as_written(tmp_path: Path) -> None:
    case, judgement = judged("two_nodes")
    path = allocated(tmp_path, cycle=1)
    for node in reversed(case.nodes):
        store.write_fragment(path, node)
    assert store.read_fragments(path) == list(case.nodes)
    write_report(path, case, judgement)
    names = sorted(os.listdir(path))
    fragments = ["fragment-gpu-11-0.json", "fragment-gpu-12-1.json"]
    assert names == [*fragments, "incident", "incident.json", "report.txt"]
    assert {mode(f"{path}/{name}") for name in names} == {0o600}
    record = read_record(store.read_file(path, "incident.json"), "x")
    assert (record.number, record.run_id, record.cycle) == (1, "run-1", 1)
    assert (record.case, record.judgement) == (case, judgement)
    text = Path(path, "report.txt").read_text()
    assert text.startswith("HANG: rank 5") and path in text


def test_report_missing_is_made_of_the_fragments(tmp_path: Path) -> None:
    """As after a launcher that was killed before it wrote its report."""
    case, judgement = judged("two_nodes")
    path = allocated(tmp_path, cycle=1)
    stored = store.open_incident(path)
    assert stored is not None and stored.record() is None and stored.report() is None
    Path(path, "incident.json").write_text("{")
    with pytest.raises(IncidentError, match="not JSON"):
        stored.record()
    for node in case.nodes:
        store.write_fragment(path, node)
    record = stored.record()
    assert record is not None and (record.case, record.judgement) == (case, judgement)
    text = stored.report()
    assert text is not None and text.startswith("HANG: rank 5")


def test_fragment_name_of_a_node_is_no_path(tmp_path: Path) -> None:
    path = allocated(tmp_path, cycle=1)
    store.write_fragment(path, replace(evidence("exception").nodes[0], node="../../x/" + "y" * 300))
    (name,) = set(os.listdir(path)) - {"incident"}
    assert name.startswith("fragment-.._.._x_yyy")


def test_fragments_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    case = evidence("exception")
    path = allocated(tmp_path)
    store.write_fragment(path, case.nodes[0])
    Path(path, "fragment-b-1.json").write_text("{")
    os.mkfifo(f"{path}/fragment-c-2.json")
    Path(path, "fragment-d-3.json").symlink_to("/dev/zero")
    os.mkdir(f"{path}/fragment-e-4.json")
    assert store.read_fragments(path) == list(case.nodes)


def test_read_file_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    path = allocated(tmp_path)
    planted = Path(path, "report.txt")
    planted.write_text("all is well")
    os.chown(planted, 12345, 12345)
    # Root may read everything; the file's owner is neither us nor the directory's owner.
    with pytest.raises(IncidentError, match="belongs to user 12345"):
        store.read_file(path, "report.txt")


def test_write_report_replaces_a_planted_link(tmp_path: Path) -> None:
    path = allocated(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path(path, "report.txt").symlink_to(victim)
    write_report(path, *judged("exception"))
    assert victim.read_text() == "mine"
    assert not Path(path, "report.txt").is_symlink()


def test_write_report_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = allocated(tmp_path)
    os.mkdir(f"{path}/report.txt")
    with pytest.raises(OSError):
        write_report(path, *judged("exception"))
    assert sorted(os.listdir(path)) == ["incident", "incident.json", "report.txt"]


# -- records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_record_is_read_as_written(name: str) -> None:
    case, judgement = judged(name)
    record = Record(3, "run-1", 2, 1_800_000_000.5, judgement, case)
    assert read_record(record_text(record), "x") == record


def test_record_unknown_fields_are_ignored() -> None:
    value = json.loads(text_of("two_nodes"))
    assert value["schema"] == 2
    value["more"] = value["verdict"]["more"] = {"a": 1}
    value["nodes"][0]["ranks"][0]["board"]["more"] = 1
    assert read_record(json.dumps(value), "x") == read_record(text_of("two_nodes"), "x")


def test_record_with_codes_of_a_newer_version_is_read() -> None:
    value = json.loads(text_of("two_nodes"))
    value["verdict"] |= {"kind": "cosmic_ray", "confidence": "certain"}
    value["nodes"][0]["trigger"] = "prophecy"
    found = read_record(json.dumps(value), "x")
    verdict = found.judgement.verdict
    assert (verdict.kind, verdict.confidence) == ("unknown", "low")
    assert verdict.sentence == value["verdict"]["sentence"]
    assert found.case.nodes[0].trigger is TriggerKind.UNKNOWN


def test_record_of_schema_1_keeps_its_verdict() -> None:
    record = read_record((FIXTURES / "old_rules.json").read_text(), "x")
    assert (record.judgement.verdict.rank, record.judgement.verdict.confidence) == (0, "low")
    assert [activity.rank for activity in record.judgement.activities] == [0, 1, 2, 3]


def test_record_durations_that_are_no_numbers_are_zero() -> None:
    case, judgement = judged("two_nodes")
    odd = Case((replace(case.nodes[0], took=float("nan"), at=float("inf")),))
    text = record_text(Record(1, "run-1", 0, 1.0, judgement, odd))
    assert "NaN" not in text and "Infinity" not in text
    assert read_record(text, "x").case.nodes[0].took == 0.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a JSON object is expected, not list"),
        ('{"schema": 3}', "its schema is 3; this version of Holdfast reads 1 and 2"),
        ('{"schema": 2}', "nodes"),
        ('{"schema": 2, "nodes": [{}], "verdict": {}, "activities": [], "edges": []}', "no NodeEvidence"),
        ('{"schema": 1, "nodes": [], "verdict": {"kind": [], "sentence": "x"}}', "no Verdict"),
        ('{"schema": 2, "nodes": 3}', "it is not the record of an incident"),
    ],
)
def test_record_that_is_none_gives_one_line(text: str, error: str) -> None:
    with pytest.raises(IncidentError) as raised:
        read_record(text, "incidents/0001/incident.json")
    (line,) = str(raised.value).splitlines()
    assert line.startswith("incidents/0001/incident.json: ")
    assert error in line


# -- the page and the command of a report


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The folder of a report, below one whose name needs quotes."""
    run = tmp_path / "my run; x"
    run.mkdir()
    found = allocated(run)
    write_report(found, *judged(NAMES[0]))
    return found


@pytest.mark.parametrize("is_link", [True, False])
def test_page_of_an_incident_replaces_a_file_and_is_private(
    place: str, tmp_path: Path, is_link: bool
) -> None:
    target, page = tmp_path / "target", tmp_path / "page.html"
    target.write_text("precious")
    if is_link:
        page.symlink_to(target)
    else:
        page.touch(0o644)
    assert main(["incidents", place, "--html", str(page)]) == 0
    assert target.read_text() == "precious"
    assert not page.is_symlink() and mode(page) == 0o600


def test_report_in_a_folder_with_a_space_names_a_command_that_works(place: str) -> None:
    (line,) = [each for each in (Path(place) / "report.txt").read_text().splitlines() if "--html" in each]
    assert shlex.split(line.partition("holdfast ")[2])[:2] == ["incidents", place]
