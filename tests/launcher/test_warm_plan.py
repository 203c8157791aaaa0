"""What is decided about a warm start before anything is tried: as functions of values."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.warm.forked import Forked
from holdfast.fault_tolerance.launcher.warm.plan import (
    DYNAMO,
    TORCH,
    Learned,
    Request,
    first_list,
    hidden,
    list_path,
    plan,
    read_list,
    script_text,
    unlike,
    why_cold,
    write_list,
)
from holdfast.fault_tolerance.launcher.warm.zygote import preload, wire

COLD = {
    "off": (Request("off", "train.py"), {}, False),
    "not started as": (Request("on", "train.sh", no_python=True), {}, False),
    "`python SCRIPT`": (Request("on", "train.py", run_path=True), {}, False),
    "PYTHON_EXEC": (Request("on", "train.py"), {"PYTHON_EXEC": "/usr/bin/other"}, False),
    "--numa-binding": (Request("on", "train.py", numa=True), {}, False),
    "command line of its own": (Request("on", "train.py", ("--to", "log-${local_rank}")), {}, False),
    "NVIDIA driver": (Request("auto", "train.py"), {}, True),
}


@pytest.mark.parametrize("why", COLD)
def test_what_starts_cold(why: str) -> None:
    request, environment, driver = COLD[why]
    assert why in why_cold(request, environment, is_tested=not driver)


def test_what_may_start_warm() -> None:
    assert not why_cold(Request("auto", "train.py"), {"PYTHON_EXEC": sys.executable}, is_tested=True)
    assert not why_cold(Request("on", "train.py", module=True), {}, is_tested=False)


def test_a_zygote_has_the_ranks_command_line_and_what_is_no_ranks_own() -> None:
    environment = {"HOME": "/root", "RANK": "7", "TORCHELASTIC_RUN_ID": "x", "HOLDFAST_RUN_DIR": "/x"}
    made = plan(Request("on", "train.py", ("--lr", "1"), several=True), environment)
    assert made.command == (sys.executable, "-u", "train.py", "--lr", "1")
    assert made.environment == {
        "HOME": "/root",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    assert made.folder == os.path.realpath(".")
    one = plan(Request("on", "pack.train", module=True, several=False), {"OMP_NUM_THREADS": "3"})
    assert one.command == (sys.executable, "-u", "-m", "pack.train")
    assert one.environment["OMP_NUM_THREADS"] == "3"


VARIABLES = st.dictionaries(
    st.sampled_from(["HOME", "TZ", "RANK", "FT_X", "MASTER_PORT"]), st.text(max_size=2)
)


@given(VARIABLES, VARIABLES)
def test_only_a_ranks_own_variables_may_differ(zygote: dict[str, str], rank: dict[str, str]) -> None:
    shared = [name for name in ("HOME", "TZ") if zygote.get(name) != rank.get(name)]
    assert unlike(zygote, rank) == shared


def test_what_a_file_in_the_scripts_folder_hides(tmp_path: Path) -> None:
    for name in ("yaml.py", "numpy.cpython-311.so", "train.txt"):
        (tmp_path / name).touch()
    for name in ("torch", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert hidden(["torch", "yaml", "numpy", "data", "train"], str(tmp_path)) == ["numpy", "torch", "yaml"]
    assert hidden(["torch"], None) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, sys\nfrom json import loads\n", ()),
        ("", ()),
        (
            "import holdfast.fault_tolerance as ft\nfrom holdfast.fault_tolerance import RankMonitorClient\n",
            (),
        ),
        ("import holdfast.ptl_resiliency\n", TORCH),
        ("import os\ndef f():\n    import mine\n", TORCH),
        ("from . import model\n", TORCH),
        ("import torch\n", TORCH),
        ("this is no Python", TORCH),
        ("\0", TORCH),
        ("import torch\ntorch.optim.SGD([])\n", (*TORCH, *DYNAMO)),
        ("from torch.optim import SGD\n", (*TORCH, *DYNAMO)),
        ("from torch import nn, optim\n", (*TORCH, *DYNAMO)),
        ("import torch\ntorch.use_deterministic_algorithms(True)\n", (*TORCH, *DYNAMO)),
    ],
)
def test_first_list(source: str, expected: tuple[tuple[str, None], ...]) -> None:
    assert first_list(source.encode()) == expected


def test_script_text_of_a_pipe_is_left_to_the_rank(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "script.py")
    assert b"torch" in script_text(str(tmp_path / "script.py")), "and it returns without a writer"


def test_what_was_learned_is_kept_for_the_script_and_the_python(tmp_path: Path) -> None:
    file = list_path(str(tmp_path), "train.py", module=False)
    assert read_list(file) == Learned()
    known = Learned([("torch", "/x/torch/__init__.py"), ("sys", None)], {"wandb": "it starts a thread"})
    write_list(file, known)
    assert read_list(file) == known
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert {path.name for path in Path(file).parent.iterdir()} == {os.path.basename(file)}
    write_list(file, Learned(None, {"x": "y"}))
    assert read_list(file).modules is None
    others = {
        list_path(str(tmp_path), script, module=module)
        for script, module in (("train.py", True), ("a.py", False))
    }
    assert file not in others and len(others) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "modules": [], "refused": {}}',
        '{"format": 1, "modules": [[1, 2]], "refused": {}}',
    ],
)
def test_a_list_that_is_none_counts_for_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(content)
    assert read_list(str(file)) == Learned()
    (tmp_path / "link.json").symlink_to(file)
    assert read_list(str(tmp_path / "link.json")) == Learned()


def test_a_list_that_cannot_be_kept_costs_nothing() -> None:
    write_list("/proc/nowhere/list.json", Learned([]))


def test_only_what_is_installed_is_imported_ahead() -> None:
    installed = preload.roots()
    entries = [
        ("json", os.path.join(os.path.dirname(json.__file__), "__init__.py")),
        ("mine", "/home/me/mine.py"),
        ("sys", "built-in"),
        ("__main__", None),
        ("wandb.sdk", None),
        ("torch", None),
    ]
    names = [name for name, _ in preload.wanted(entries, frozenset({"wandb"}), installed)]
    assert names == ["json", "sys", "torch"]


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.integers(0, 3))
def test_messages_arrive_with_their_descriptors(message: dict[str, str], count: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = [os.memfd_create("x") for _ in range(count)]
        wire.send(ours, message, sent)
        received = wire.receive(theirs)
        assert received is not None
        found, descriptors = received
        assert found == message and len(descriptors) == count
        assert [os.fstat(a).st_ino for a in sent] == [os.fstat(b).st_ino for b in descriptors]
        for descriptor in [*sent, *descriptors]:
            os.close(descriptor)
        ours.close()
        assert wire.receive(theirs) is None


class Read(socket.socket):
    """A socket of which the other side has read everything, and is gone, by the time it is sent."""

    other: socket.socket

    def sendmsg(self, *arguments: Any) -> int:
        sent = super().sendmsg(*arguments)
        wire.receive(self.other)
        self.other.close()
        return sent


@pytest.mark.parametrize(
    ("ends", "status"), [(lambda: os._exit(3), 3), (lambda: os.kill(os.getpid(), 9), -9)]
)
def test_a_forked_rank_ends_as_a_process_of_subprocess_does(ends: object, status: int) -> None:
    assert callable(ends)
    pid = os.fork()
    if pid == 0:
        ends()
    rank = Forked(pid)
    assert rank.wait(30) == status == rank.returncode == rank.poll()
    rank.kill()  # it has ended: no process is signalled


def test_who_has_all_of_a_message_may_be_gone_before_the_call_ends() -> None:
    """A standby answers, and closes its gate, as soon as it has read: that is no failure of the sender's."""
    ours, theirs = socket.socketpair()
    with Read(fileno=ours.detach()) as sender:
        sender.other = theirs
        wire.send(sender, {"environment": {"PATH": "/bin"}})
