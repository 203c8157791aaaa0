"""What a script's imports say: real files in real folders, read and never run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.doctor import script as scripts
from holdfast.doctor.finding import NOTE, OK, PROBLEM
from holdfast.doctor.judgements import script as judgements
from holdfast.doctor.judgements.script import Imports
from holdfast.doctor.looks import project
from holdfast.doctor.looks.imports import find, is_installed, is_python_s, search_path
from holdfast.doctor.looks.lists import Kept
from holdfast.doctor.script import Script


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def look(folder: Path, script: str = "train.py", *, module: bool = False) -> Imports:
    name = script if module else str(folder / script)
    return project.look(name, module=module, path=search_path(str(folder), sys.path[1:]))


def test_installed_modules_python_s_own_and_those_of_the_project(tmp_path: Path) -> None:
    files = {
        "train.py": "import os.path, json\nimport numpy as np\nfrom model.layers import Linear\nimport pytest",
        "model/__init__.py": "",
        "model/layers.py": "from . import norms\nfrom .norms import Norm\nimport psutil",
        "model/norms.py": "from ..model import layers\nimport hypothesis.strategies",
        "unused.py": "import torch",
    }
    found = look(written(tmp_path, files))
    assert found.installed == ["hypothesis", "numpy", "psutil", "pytest"]
    assert found.project == ["model"]
    assert (found.missing, found.perhaps_missing, found.shadowing, found.unread) == ({}, {}, {}, {})


def test_nothing_is_run(tmp_path: Path) -> None:
    files = {
        "train.py": "open('ran', 'w')\nimport helper\nimport package.part",
        "helper.py": "open('ran', 'w')",
        "package/__init__.py": "open('ran', 'w')",
        "package/part.py": "open('ran', 'w')",
    }
    written(tmp_path, files)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", "train.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "helper, package imported anew" in done.stdout
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_missing_modules(tmp_path: Path) -> None:
    text = """
import no_such_a
from typing import TYPE_CHECKING
import winreg_like_b as b, json
if TYPE_CHECKING:
    import only_for_types
try:
    import on_trial_c
except ImportError:
    import instead_d
try:
    import no_such_e
finally:
    pass
def late():
    import late_f
class Model:
    import no_such_g
if __name__ == "__main__":
    import no_such_h
if b:
    import perhaps_i
with open("x") as file:
    import no_such_k
match b:
    case 1:
        import perhaps_l
for _ in b:
    import perhaps_m
from helper import name_in_it, no_module
import helper.is_no_package
import msvcrt
"""
    found = look(
        written(tmp_path, {"train.py": text, "helper.py": "import no_such_j\nfrom . import no_package"})
    )
    assert [*found.missing] == [
        *("no_such_a", "winreg_like_b", "no_such_e", "no_such_g", "no_such_h", "no_such_k"),
        *("helper.is_no_package", "no_such_j"),
    ]
    assert [*found.perhaps_missing] == [
        "on_trial_c",
        "instead_d",
        "late_f",
        "perhaps_i",
        "perhaps_l",
        "perhaps_m",
    ]
    assert found.missing["no_such_a"].endswith("train.py:2")
    assert found.missing["no_such_j"].endswith("helper.py:1")
    assert judgements.missing(found).verdict == PROBLEM
    assert judgements.missing(Imports(perhaps_missing={"apex": "train.py:1"})).verdict == NOTE
    assert judgements.missing(Imports()).verdict == OK


def test_what_stands_before_installed_modules(tmp_path: Path) -> None:
    files = {
        "train.py": "import torch",
        "random.py": "",  # which torch imports
        "turtle.py": "",  # which it does not
        "pytest/__init__.py": "",
        "wandb/run-1/log.txt": "",  # a bare folder hides nothing
        "psutil/data.bin": "",
        "sys.py": "",  # built in: never found
        "mine.py": "",
        "not-a-module.py": "",
    }
    found = look(written(tmp_path, files))
    assert [*found.shadowing] == ["pytest", "random", "turtle"]
    assert found.shadowing["pytest"] == str(tmp_path / "pytest")
    assert "random" in found.needed and "pytest" not in found.needed
    judged = judgements.shadowing(found)
    assert judged.verdict == PROBLEM
    assert f"{tmp_path / 'random.py'}: ranks import it in place of random" in judged.what
    harmless = judgements.shadowing(Imports(shadowing={"pytest": "/a/pytest"}))
    assert harmless.verdict == NOTE
    assert "/a/pytest stands before 1 installed module of the same name" in harmless.what


def test_a_torch_beside_the_script_is_a_problem(tmp_path: Path) -> None:
    found = look(written(tmp_path, {"train.py": "import torch", "torch.py": ""}))
    assert found.needed == ["torch"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("def f(:\n", ", line 1: "), ("import a\0b", "null bytes"), ("x = (\n\n", "never closed")],
)
def test_what_is_no_python(tmp_path: Path, text: str, told: str) -> None:
    found = look(written(tmp_path, {"train.py": text}))
    judged = judgements.imports("train.py", found)
    assert judged.verdict == PROBLEM
    assert told in judged.what


def test_an_encoding_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes("# coding: latin-1\nname = 'é'\nimport numpy".encode("latin-1"))
    assert look(tmp_path).installed == ["numpy"]


def test_a_module_its_main_and_a_folder(tmp_path: Path) -> None:
    files = {
        "app/__init__.py": "import numpy",
        "app/__main__.py": "from .train import run",
        "app/train.py": "import psutil",
        "folder/__main__.py": "import numpy",
    }
    written(tmp_path, files)
    assert look(tmp_path, "app", module=True).installed == ["numpy", "psutil"]
    assert look(tmp_path, "app.train", module=True).installed == ["numpy", "psutil"]
    assert "app.nope" in look(tmp_path, "app.nope", module=True).missing
    assert look(tmp_path, "folder").installed == ["numpy"]
    assert Script(str(tmp_path / "folder")).folder == str(tmp_path / "folder")


def test_where_modules_are_found() -> None:
    for name, installed, python_s in (
        ("json", True, True),
        ("os", True, True),
        ("sys", True, True),
        ("_socket", True, True),
        ("numpy", True, False),
        ("numpy.linalg", True, False),
        ("holdfast", False, False),  # on PYTHONPATH, as a project is
    ):
        spec = find(name, sys.path)
        assert spec is not None
        assert (is_installed(spec), is_python_s(spec)) == (installed, python_s), name
    assert find("no_such_module.below", sys.path) is None
    assert find("json.no_such_part", sys.path) is None


def test_a_large_project_is_cut_and_in_time(tmp_path: Path) -> None:
    files = {f"part{number}.py": f"import part{number + 1}\n" * 20 for number in range(600)}
    began = time.monotonic()
    found = look(written(tmp_path, files), "part0.py")
    assert found.cut
    assert "more modules were not looked at" in judgements.imports("part0.py", found).what
    assert time.monotonic() - began < 10


def test_the_findings_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written(tmp_path, {"train.py": "import numpy\nimport helper", "helper.py": ""}))
    script = Script("train.py")
    found = scripts.look(script)
    told = scripts.script_findings(script, found, Kept(""))
    assert [(finding.check, finding.verdict) for finding in told] == [
        ("script", OK),
        ("missing modules", OK),
        ("shadowed modules", OK),
    ]
    assert told[0].what == (
        "train.py: numpy imported ahead once a job has learned it; helper imported anew by each rank, as edits must "
        "show"
    )
    assert scripts.hiding(found, Kept("")) == []
    later = scripts.script_findings(script, found, Kept("", modules=400))
    assert later[0].what.startswith("train.py: 400 modules learned by an earlier job, imported ahead where")


def test_what_hides_a_module_that_is_imported_ahead() -> None:
    found = Imports(
        shadowing={"turtle": "/a/turtle.py", "random": "/a/random.py", "rich": "/a/rich"}, needed=["random"]
    )
    assert scripts.hiding(found, Kept("")) == ["random"]
    assert scripts.hiding(found, Kept("", packages=frozenset({"rich"}))) == ["random", "rich"]
