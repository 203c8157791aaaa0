"""The log lines of the controller, as simulated jobs show them: a golden file, so that a change of wording is a diff.

`python -m tests.simulation.log_texts` writes it, from the seeds of the test. A number is `#`.
"""

from __future__ import annotations

from pathlib import Path

from .scenarios import scenario
from .search import run
from .transitions import SEEDS

GOLDEN = Path(__file__).with_name("log_texts.txt")


def documented() -> set[str]:
    """What the golden file has."""
    return set(GOLDEN.read_text().splitlines())


def main() -> None:
    """Write the golden file."""
    found = {text for seed in range(SEEDS) for text in run(scenario(seed))[0].log_texts}
    GOLDEN.write_text("".join(f"{text}\n" for text in sorted(found)))


if __name__ == "__main__":
    main()
