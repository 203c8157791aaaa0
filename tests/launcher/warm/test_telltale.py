"""A script cannot tell whether it was started warm: what it sees of its process is the same, value for value.

The program `telltale` tells what it sees; here two jobs of it, one cold and one warm, are compared. What differs and is
meant to stands in `MEANT` and `BEFORE_ITS_IMPORTS`, and in docs/warm-start.md, with its reason.
Does not cover: the order in which modules were imported, and time; what a script starts (test_rank_environment.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.jobs import Job
from tests.launcher.warm.conftest import COLD, HERE, WARM, must_be_warm, run
from tests.processes import Spawner

RANKS = [(cycle, rank) for cycle in (0, 1) for rank in (0, 1)]

OF_ITS_OWN = {
    "MASTER_PORT": "the kernel chose it",
    "TORCHELASTIC_RUN_ID": "drawn for each job",
    "TORCHELASTIC_ERROR_FILE": "below a folder with a drawn name",
    "FT_RANK_MONITOR_IPC_SOCKET": "below a folder with a drawn name",
}
"""Variables that differ between any two jobs."""

MEANT = {
    "modules": "what was imported ahead is there",
    "gc: frozen": "what was imported ahead is kept out of collections, so that its memory stays shared",
    "hash: x": "one seed for all forks of an interpreter; a given PYTHONHASHSEED is honoured",
    "hash: order of a set": "follows from the seed",
    "kernel: environment at exec": "of the zygote; the rank's own variables are written into it",
}
"""What may differ, and why."""

BEFORE_ITS_IMPORTS = {
    "logging: names": "of the modules that were imported ahead",
    "warnings: filters": "libraries add theirs when they are imported",
    "atexit: count": "libraries register when they are imported",
    "modules: finders": "libraries add theirs when they are imported",
}
"""What may differ until the script has imported what was imported ahead; then it is the same again."""


class Told(NamedTuple):
    """What the ranks of one job told: part -> (cycle, rank) -> name -> value."""

    job: Job
    parts: Mapping[str, Mapping[tuple[int, int], dict[str, Any]]]


def tell(
    spawn: Spawner,
    folder: Path,
    mode: str,
    *words: str,
    env: Mapping[str, str | None],
    under: Sequence[str] = (),
) -> Told:
    """Run the program and read what it told."""
    job = run(spawn, folder, mode, *words, "crash", env=env, under=under)
    told: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for path in sorted(job.notes.glob("*-*-*.json")):
        part, cycle, rank = path.stem.split("-")
        if part != "here":
            told.setdefault(part, {})[int(cycle), int(rank)] = read(job, path)
    return Told(job, told)


def read(job: Job, file: Path) -> dict[str, Any]:
    """What one rank told, without the names that are this job's own."""
    text = file.read_text()
    for path, name in ((job.notes.parent, "JOB"), (job.spawned.stdout, "OUT"), (job.spawned.stderr, "ERR")):
        text = text.replace(str(path), name)
    text = re.sub(r"/dev/shm/holdfast-\w+", "BOARDS", text)  # a drawn name; where its stack would go is open
    facts: dict[str, Any] = json.loads(re.sub(r"JOB/logs/[^/]+", "JOB/logs/OF-THE-RUN", text))
    for name in ("os: environ", "os: environb"):
        if name in facts:
            facts[name].update(dict.fromkeys(facts[name].keys() & OF_ITS_OWN.keys(), "its own"))
    return facts


def differences(cold: Told, warm: Told) -> dict[str, list[Any]]:
    """Part, cycle, rank and name of what is not the same -> the two values."""
    found = {}
    assert {part: set(ranks) for part, ranks in cold.parts.items()} == {
        part: set(ranks) for part, ranks in warm.parts.items()
    }
    for part, ranks in cold.parts.items():
        for place, facts in ranks.items():
            other = warm.parts[part][place]
            for name in sorted(facts.keys() | other.keys()):
                pair = [facts.get(name, "missing"), other.get(name, "missing")]
                meant = name in MEANT or (part == "start" and name in BEFORE_ITS_IMPORTS)
                if pair[0] != pair[1] and not meant and not name.startswith("unique "):
                    found[f"{part} of rank {place[1]} in cycle {place[0]}, {name}"] = _narrow(pair)
    return found


def _narrow(pair: list[Any]) -> list[Any]:
    """Only the entries that differ, of two dictionaries or lists."""
    if all(isinstance(each, dict) for each in pair):
        names = [name for name in pair[0].keys() | pair[1].keys() if pair[0].get(name) != pair[1].get(name)]
        return [{name: each.get(name, "missing") for name in sorted(names)} for each in pair]
    if all(isinstance(each, list) for each in pair):
        return [[value for value in one if value not in other] or one for one, other in (pair, pair[::-1])]
    return pair


def same_values(told: Told) -> dict[str, list[list[tuple[int, int]]]]:
    """Of each "unique" fact, which ranks have the same value."""
    found: dict[str, list[list[tuple[int, int]]]] = {}
    for part, ranks in told.parts.items():
        for name in {name for facts in ranks.values() for name in facts if name.startswith("unique ")}:
            by_value: dict[str, list[tuple[int, int]]] = {}
            for place, facts in ranks.items():
                by_value.setdefault(repr(facts[name]), []).append(place)
            found[f"{part}, {name}"] = [places for places in by_value.values() if len(places) > 1]
    return found


def check(cold: Told, warm: Told) -> None:
    """Nothing differs that is not meant to, and the ranks' own output is the same."""
    found = differences(cold, warm)
    assert not found, json.dumps(found, indent=1)
    assert same_values(warm) == same_values(cold)
    assert output(warm.job) == output(cold.job)
    for part, ranks in cold.parts.items():
        for place, facts in ranks.items():
            if "modules" in facts:
                assert set(facts["modules"]) <= set(warm.parts[part][place]["modules"])
    must_be_warm(warm.job, cycles=(0, 1))


def output(job: Job) -> list[str]:
    """The program's lines on standard output; ranks write in any order."""
    return sorted(job.lines(r"^(\[default\d\]:)?rank \d"))


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Path]:
    """A folder with the program in it, for `telltale` as a module."""
    shutil.copytree(HERE / "telltale", tmp_path / "telltale", ignore=shutil.ignore_patterns("__pycache__"))
    yield tmp_path


def twice(spawn: Spawner, folder: Path, *words: str, env: Mapping[str, str | None]) -> tuple[Told, Told]:
    return tell(spawn, folder, COLD, *words, env=env), tell(spawn, folder, WARM, *words, env=env)


@pytest.mark.slow
def test_a_script(spawn: Spawner, programs: Path) -> None:
    """With torch."""
    words = ("telltale/__main__.py", "start", "torch")
    cold, warm = twice(spawn, programs, *words, env={"PYTHONHASHSEED": "7"})
    for place in RANKS:
        facts = warm.parts["start"][place]
        assert facts["hash: x"] == cold.parts["start"][place]["hash: x"], "a given PYTHONHASHSEED is honoured"
        assert facts["sys: argv"] == [str(each) for each in (*words, "crash")]
    check(cold, warm)


def test_a_module(spawn: Spawner, programs: Path) -> None:
    """`-m`, without torch, of which it sees nothing but in `sys.modules`; output goes to files and is repeated."""
    words = ("--tee", "3", "-m", "telltale", "start")
    cold, warm = twice(spawn, programs, *words, env={"PYTHONHASHSEED": None})
    assert [line[:11] for line in output(warm.job)[:1]] == ["[default0]:"]
    facts = cold.parts["start"][1, 1]
    assert facts["kernel: descriptors"]["1"][0] == "JOB/logs/OF-THE-RUN/attempt_1/1/stdout.log"
    assert facts["main: __package__"] == "telltale"
    assert facts["sys: argv"][0].endswith("/telltale/__main__.py")
    check(cold, warm)


def test_a_folder(spawn: Spawner, programs: Path) -> None:
    """`python FOLDER` runs its `__main__.py`, and the limits and masks are those of the launcher's parent."""
    limited = 'ulimit -n 900; umask 027; exec nice -n 3 "$@"'
    under = ["sh", "-c", limited, "sh"]
    env = {"OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore::ImportWarning", "LC_ALL": "C.UTF-8"}
    words = ("telltale", "start")
    cold, warm = (tell(spawn, programs, mode, *words, env=env, under=under) for mode in (COLD, WARM))
    facts = cold.parts["start"][1, 0]
    assert facts["kernel: limits"]["RLIMIT_NOFILE"][0] == 900
    assert facts["kernel: status Umask"] == "0027"
    assert facts["kernel: nice"] == os.nice(0) + 3
    check(cold, warm)


@pytest.mark.variant
def test_under_lightning(spawn: Spawner, programs: Path) -> None:
    """Lightning asks for the rank while it is imported; trained weights are the same, bit for bit."""
    pytest.importorskip("lightning.pytorch")
    words = ("--ft-preload", "lightning.pytorch", "telltale/__main__.py", "lightning")
    cold, warm = twice(spawn, programs, *words, env={})
    assert [cold.parts["lightning"][1, rank]["lightning: ranks at import"] for rank in (0, 1)] == [
        [0, 0],
        [1, 1],
    ]
    check(cold, warm)
    lines = re.findall(r"^.*Seed set to 3$", warm.job.spawned.output(), re.MULTILINE)
    assert len(lines) == len(re.findall(r"^.*Seed set to 3$", cold.job.spawned.output(), re.MULTILINE)) == 2
