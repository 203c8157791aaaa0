"""Pages as tests read them: the documentation's programs as they stand there; HTML, in itself and in a real browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until

DOCS = Path(__file__).resolve().parent.parent / "docs"


def block(page: str, title: str) -> str:
    """The Python block of this title."""
    text = (DOCS / page).read_text()
    found = re.search(rf'^```python title="{title}"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no block {title!r}"
    return found[1]


VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Tags that are balanced, and what a page loads or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        loads = [attr for attr in attrs if attr[0] in ("src", "href") or attr[0].startswith("on")]
        self.loads += [f"{name}={value}" for name, value in loads]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def chromium() -> str:
    found = shutil.which("chromium")
    if not found:
        pytest.skip("no chromium: scripts/install-system-packages installs it")
    return found


def browse(tmp_path: Path, html: str, *options: str) -> str:
    """What one run of the browser prints; its profile is in a folder with a short name, since sockets are in it."""
    file = tmp_path / "incident.html"
    file.write_text(html)
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    fixed += ["--no-first-run", "--disable-background-networking", "--disable-breakpad"]
    home = tempfile.mkdtemp(prefix="hf-", dir="/tmp")
    environment = {"HOME": home, "TMPDIR": home, "XDG_RUNTIME_DIR": home, "PATH": os.environ["PATH"]}
    command = [chromium(), *fixed, f"--user-data-dir={home}/p", *options, file.as_uri()]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    browser = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    try:
        told, errors = browser.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)  # helpers outlive it for a moment
        browser.wait()
        wait_until(lambda: removed(home), what=f"{home} is removed")
    assert browser.returncode == 0, errors[-2000:]
    return told


def removed(folder: str) -> bool:
    """What still ends may still write there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)
