"""A folder for logs is there and can be written to, or the launcher says in one line why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.checks import check_log_files, make_log_dir


def test_the_null_device_is_no_folder_and_allowed() -> None:
    make_log_dir("/dev/null")


def test_it_is_made_and_left_empty(tmp_path: Path) -> None:
    for _ in range(2):
        make_log_dir(str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a" / "b"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/x", "No such file or directory"),
        ("/proc", "No such file or directory"),
        ("file/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ConfigError) as caught:
        make_log_dir(path)
    line = str(caught.value)
    assert line.startswith("--log-dir: no logs can be kept in /")
    assert f"{path}: {why}; give another folder" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("prefix", "log_file", "why"),
    [
        ("nowhere/job", None, "--ft-per-cycle-applog-prefix: no file can be made in "),
        ("nowhere/job", None, "nowhere: No such file or directory; make the folder or give another path"),
        ("file/job", None, "file: Not a directory"),
        ("/proc/job", None, "/proc: No such file or directory"),
        (None, "nowhere/ft.log", "nowhere/ft.log cannot be written to: No such file or directory"),
        (None, ".", "--ft-launcher-log: "),
        (None, ".", "cannot be written to: Is a directory"),
    ],
)
def test_log_file_that_cannot_be_written_is_one_line(
    prefix: str | None, log_file: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ConfigError) as caught:
        check_log_files(prefix, log_file)
    assert why in str(caught.value) and "\n" not in str(caught.value)
