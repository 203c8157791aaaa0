"""The launcher's command line in the journal, without the secrets in it."""

from __future__ import annotations

from tests.launcher.conftest import Jobs


def test_journal_of_a_script_with_secrets_in_its_arguments_has_none(jobs: Jobs) -> None:
    arguments = ["--token", "abc123def", "--db-password=hunter2", "--lr", "0.1", "S3CR3Tvalue"]
    script = jobs.script("say('runs')")
    job = jobs.command("--nproc-per-node", "1", script, *arguments, env={"MY_TOKEN": "S3CR3Tvalue"})
    job.end(0)
    (record,) = job.journal("run_start")
    (path,) = job.run_dir.glob("journal-*.jsonl")
    for secret in ("abc123def", "hunter2", "S3CR3Tvalue"):
        assert secret not in path.read_text()
    assert record["argv"][-6:] == ["--token", "***", "--db-password=***", "--lr", "0.1", "***"]
