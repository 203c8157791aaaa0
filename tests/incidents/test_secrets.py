"""Secrets in command lines and output, in the forms that programs use: none is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.incidents.capture.capture import load_spill, spill
from holdfast.incidents.evidence import Case
from holdfast.incidents.report.redaction import redacted_arguments, redacted_text
from tests.incidents.cases_for_reports import hang

SECRETS = (
    ("token=abc123def", "abc123def"),
    ("retry with token: abc123def", "abc123def"),
    ("{'token': 'abc123def'}", "abc123def"),
    ('{"auth": "abc123def", "step": 3}', "abc123def"),
    ("curl -u ada:s3cr3t https://x", "s3cr3t"),
    ("curl --user ada:s3cr3t https://x", "s3cr3t"),
    ("curl -uada:s3cr3t https://x", "s3cr3t"),
    ("mysql -uroot -pS3CR3T db", "S3CR3T"),
    ("mysqldump -h db -pS3CR3T db", "S3CR3T"),
    ("/usr/bin/mariadb -u root -pS3CR3T db", "S3CR3T"),
    ("sshpass -p S3CR3T ssh node", "S3CR3T"),
    ("sshpass -pS3CR3T ssh node", "S3CR3T"),
    ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
    ("key is 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
    ("redis-cli -a S3CR3T ping", "S3CR3T"),
    ("PGPASSWORD=s3cr3t psql -h db", "s3cr3t"),
    ("MYSQL_PWD='s3cr3t' mysql", "s3cr3t"),
    ("docker login -u me -p s3cr3t registry.io", "s3cr3t"),
    ("podman login -ps3cr3t registry.io", "s3cr3t"),
    ("invalid token 9f8e7d6c5b4a39281706", "9f8e7d6c5b4a39281706"),
)


def test_redaction_of_the_forms_of_command_lines_hides_each() -> None:
    shown = [text for text, secret in SECRETS if secret in redacted_text(text, {})]
    assert shown == []


ORDINARY = (
    "git checkout 4f9d3c2 -- train.py",
    "at revision 0123456789abcdef0123456789abcdef01234567",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "train.py -u runs/a:b -p 8 --steps 3",
    "python -u train.py",
    "docker run -u 1000:1000 image",
    "mysql -uroot -p db",
    "next_token = model.generate(batch)",
    "token: 17, pad_token_id=50256",
    "auth=none",
    "docker login --password-stdin -u me registry.io",
    "docker run -p 8080:80 image",
    "token embedding2, token layers12",
    "OLDPWD=/home/ada",
    "rsync -a data/ gpu-12:/data",
    "mkdir -p /data/x; cp -pR a b",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_redaction_of_ordinary_text_changes_nothing(text: str) -> None:
    assert redacted_text(text, {}) == text


def test_redaction_with_a_common_word_as_a_value_keeps_the_word() -> None:
    lines = {
        "step 3 diverged": {"MODEL_AUTH": "diverged"},
        "rank 1 in forward": {"SORT_KEY": "forward"},
        "reads the dataset": {"CACHE_KEY": "dataset"},
        "backward > all_reduce": {"X_AUTH": "all_reduce"},
    }
    assert [redacted_text(text, environment) for text, environment in lines.items()] == list(lines)


@pytest.mark.parametrize("value", ["hunter2hunter2", "Swordfish!", "dGhlc2VjcmV0", "correct-horse-battery"])
def test_redaction_of_a_secret_value_hides_it(value: str) -> None:
    for name in ("MY_KEY", "MY_AUTH", "DB_PASSWORD"):
        assert value not in redacted_text(f"connecting with {value} as the key", {name: value})


def test_redaction_of_a_password_that_is_a_word_hides_it() -> None:
    for name in ("DB_PASSWORD", "DB_PASS", "MY_TOKEN", "SECRET_KEY"):
        assert "swordfish" not in redacted_text("login with swordfish", {name: "swordfish"})


def test_redaction_of_arguments_hides_a_secret_after_its_option() -> None:
    arguments = [
        "run.sh",
        "--token",
        "abc 123",
        "-u",
        "ada:s3cr3t",
        "a b",
        "mysql",
        "-h",
        "db",
        "-pS3CR3T",
        "x",
    ]
    shown = ["run.sh", "--token", "***", "-u", "ada:***", "a b", "mysql", "-h", "db", "-p***", "x"]
    assert redacted_arguments(arguments, {}) == shown
    assert redacted_arguments([], {}) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_kept_evidence_outside_the_private_folder_is_redacted(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that dies leaves the file in the temporary directory."""
    monkeypatch.setenv("MY_TOKEN", "Swordfish99")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case, _ = hang(2, 1)
    node = replace(case.nodes[0], notes=("logs in with Swordfish99",))
    path = spill(node, str(tmp_path if is_there else tmp_path / "gone"))
    assert ("Swordfish99" in Path(path).read_text()) == is_there
    assert Case((load_spill(path),)).ranks
