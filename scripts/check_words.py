"""A step of `make lint`: words and phrases that the project does not use, in code, tests and docs.

It prints each hit, and exits with 1 if there is one. Each phrase has the word to use instead. They are actors that do
not exist, verbs of speech for what a program does, and metaphors: a reader has to decode them.
Does not cover: grammar, and words inside of identifiers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is read: files that git knows, of these kinds.
KINDS = {".cff", ".cpp", ".h", ".j2", ".md", ".py", ".pyi", ".sh", ".toml", ".yaml", ".yml"}

INSTEAD = {
    r"nobody|no one": "name the actor, or the passive: no rank is …",
    r"somebody|someone": "name the actor, or use the passive",
    r"whoever|whomever": "name the actor",
    r"whom": "which rank, which node",
    r"for ever": "forever, or the number",
    r"(?:is|are|was|were|be) told": "receives, is passed",
    r"tells? (?:the|a|it|its|them|us|all) (?:rank|launcher|monitor|user)s?": "reports, passes",
    r"says? so": "reports it, logs it",
    r"(?:go|goes|went|gone|going) on\b(?! (?:a|the|its) )": "continue",
    r"stand(?:s|ing)? still|stood still": "stall, make no progress, be suspended",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:lay|lays|laid|laying) down": "write, set",
    r"(?:give|gives|gave|given|giving) up on": "abandon, stop waiting for",
    r"by turns": "alternately, interleaved",
    r"for want of": "because … is missing",
    r"is of no use|it is no use|was no use": "cannot help",
    r"hears? (?:of|from)|heard (?:of|from)": "receive from",
}

EXCEPTIONS: dict[str, str] = {
    # path: the reason why none of its lines is checked
    "scripts/check_words.py": "has the list",
    "LICENSE": "not our words",
}
# Their hash is the evidence of a run on a GPU (docs/gpu.md): a changed comment would void it.
HASHED = (
    "src/holdfast/fault_tolerance/launcher/warm/",
    "src/holdfast/fault_tolerance/launcher/ranks/prologue/",
)

PHRASE = re.compile("|".join(rf"(\b(?:{phrase})\b)" for phrase in INSTEAD), re.IGNORECASE)
HINTS = list(INSTEAD.values())


def files() -> list[str]:
    # The option: in a container of CI the files belong to another user.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = sorted(name for name in listed.stdout.split("\0") if Path(name).suffix in KINDS)
    return [name for name in names if name not in EXCEPTIONS and not name.startswith(HASHED)]


def hits(name: str) -> list[str]:
    """Each hit of a file as `path:line: "phrase": instead`. A phrase may continue on the next line."""
    try:
        text = (ROOT / name).read_text(encoding="utf-8")
    except FileNotFoundError:  # deleted and not committed
        return []
    found = []
    for match in PHRASE.finditer(re.sub(r"\n\s*(?:#|>|//)? ?", lambda gap: " " * len(gap[0]), text)):
        if match[0].isupper():  # an identifier
            continue
        line = text.count("\n", 0, match.start()) + 1
        found.append(f'{name}:{line}: "{match[0]}": {HINTS[(match.lastindex or 1) - 1]}')
    return found


def main() -> int:
    found = [line for name in files() for line in hits(name)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
