"""No secret is in what is written or printed; ordinary words stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.incidents import evidence as E
from holdfast.incidents import judge
from holdfast.incidents.report.page import page
from holdfast.incidents.report.redaction import redacted, redacted_arguments, redacted_text
from holdfast.incidents.report.store import Record, record_text
from holdfast.incidents.report.text import report_lines
from tests.incidents.cases_for_reports import hang

NAMES = st.sampled_from(
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "WANDB_API_KEY", "SENTRY_DSN", "PGPASSWORD"]
)


def spread(secret: str) -> E.NodeEvidence:
    """Evidence with the secret in texts of every kind."""
    case, _ = hang(2, 1)
    node = case.nodes[0]
    said = f"connecting with {secret} as the key"
    told = replace(
        node.ranks[1],
        last_lines=(said, f"env: {{'X': {secret!r}}}", *secret.split("\n")),
        raised=E.Raised("ValueError", said, f"Traceback\n  {said}\n"),
        stacks=(E.Thread("main", (E.Frame(f"f({secret})", f"/home/{secret}/x.py", 3),), main=True),),
        notes=(said,),
    )
    return replace(node, reason=said, notes=(f"--token {secret}",), ranks=(node.ranks[0], told))


def written(node: E.NodeEvidence) -> str:
    """Everything that is written of it, as a person reads it; JSON's escapes are undone where they could hide one."""
    case = E.Case((node,))
    judgement = judge(case)
    record = record_text(Record(1, "run", 0, 1.0, judgement, case))
    return "\n".join([*report_lines(case, judgement), record, page(case, judgement)])


@given(NAMES, st.text("abcdefXYZ0123456789+/=_-.$!% '\"\\", min_size=8, max_size=40))
def test_a_secret_is_nowhere(name: str, secret: str) -> None:
    assume(len(secret.strip()) >= 8 and len(set(secret)) > 4 and any(sign.isdigit() for sign in secret))
    assume(secret not in written(spread("nothing")))
    assert secret in spread(secret).notes[0]
    text = written(redacted(spread(secret), {name: secret}))
    for form in {secret, repr(secret)[1:-1], secret.strip()}:
        assert form not in text


KEY = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA1234\nQmFzZTY0IGlzIGZ1bg==\n-----END KEY-----"


def test_a_secret_of_several_lines() -> None:
    text = written(redacted(spread(KEY), {"TLS_KEY": KEY}))
    assert "MIIEpAIB" not in text and "QmFzZTY0" not in text


def test_private_key_over_several_last_lines_is_hidden() -> None:
    node = hang(2, 1)[0].nodes[0]
    key = KEY.replace("KEY-", "RSA PRIVATE KEY-")
    failed = replace(node.ranks[1], last_lines=("loads", *key.split("\n"), "KeyError: 'lr'"))
    found = redacted(replace(node, ranks=(node.ranks[0], failed)), {})
    assert found.ranks[1].last_lines == ("loads", "***", "KeyError: 'lr'")


def test_without_secrets_nothing_changes() -> None:
    node = hang(8)[0].nodes[0]
    assert redacted(node, {"PATH": "/usr/bin", "HOME": "/home/ada", "USER": "ada"}) == node


def test_words_that_rules_read_stay_what_they_are() -> None:
    node = hang(2, 1)[0].nodes[0]
    found = redacted(node, {"API_KEY": "heartbeat", "SOME_TOKEN": "elsewhere"})
    assert found.ranks[1].passed is not None and found.ranks[1].passed.reason == "heartbeat"
    assert found.ranks[1].board == node.ranks[1].board


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TOKENIZERS_PARALLELISM", "true", "it is true"),
        ("TOKENIZER_NAME", "meta-llama", "the model meta-llama"),
        ("MAX_TOKENS", "409600", "409600 tokens"),
        ("AUTH_MODE", "required", "a rank is required"),
        ("SECRET_FLAG", "enabled", "is enabled"),
        ("SSH_AUTH_SOCK", "/tmp/agent", "open: /tmp/agent"),
        ("GOOGLE_CREDENTIALS_PATH", "/home/ada", "/home/ada/train.py"),
        ("API_KEY", "abc", "abcdef"),
        ("PWD", "/home/ada/train", "/home/ada/train/train.py"),
        ("MONKEY", "banana split", "banana split"),
        ("KEYBOARD", "english", "english"),
        ("MODEL_AUTH", "diverged", "step 3 diverged"),
        ("SORT_KEY", "forward", "rank 1 in forward"),
        ("X_AUTH", "all_reduce", "backward > all_reduce"),
    ],
)
def test_ordinary_words_stay(name: str, value: str, text: str) -> None:
    assert redacted_text(text, {name: value}) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("key AKIAABCDEFGHIJKLMNOP used", "key *** used"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("{'authorization': 'Basic dXNlcjpwYXNz'}", "{'authorization': '***'}"),
        ("train.py --token abc --lr 3", "train.py --token *** --lr 3"),
        ("train.py --hf-token=abc --x", "train.py --hf-token=*** --x"),
        ("password=abc, next", "password=***, next"),
        ('{"db_password": "a b"}', '{"db_password": ***}'),
        ("api_key=0123456789", "api_key=***"),
        ("postgres://ada:s3cr3t@db/x", "postgres://ada:***@db/x"),
        ("https://ghtokenghtokenghtoken@github.com/x", "https://***@github.com/x"),
        ("hf_abcdefghijklmnopqrstuvwxyz0123", "***"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123", "***"),
        ("sk-proj-abcdefghij0123456789", "***"),
        ("s3://bucket/x?X-Signature=0123456789abcdef0123", "s3://bucket/x?X-Signature=***"),
    ],
)
def test_what_looks_like_a_secret(text: str, clean: str) -> None:
    assert redacted_text(text, {}) == clean


HEX = "0123456789abcdef0123456789abcdef01234567"
SECRETS = {
    "abc123def": (
        "token=abc123def", "retry with token: abc123def", "{'token': 'abc123def'}", '{"auth": "abc123def", "step": 3}',
    ),
    "s3cr3t": (
        "curl -u ada:s3cr3t https://x", "curl --user ada:s3cr3t https://x", "curl -uada:s3cr3t https://x",
        "PGPASSWORD=s3cr3t psql -h db", "MYSQL_PWD='s3cr3t' mysql",
        "docker login -u me -p s3cr3t registry.io", "podman login -ps3cr3t registry.io",
    ),
    "S3CR3T": (
        "mysql -uroot -pS3CR3T db", "mysqldump -h db -pS3CR3T db", "/usr/bin/mariadb -u root -pS3CR3T db",
        "sshpass -p S3CR3T ssh node", "sshpass -pS3CR3T ssh node", "redis-cli -a S3CR3T ping",
    ),
    HEX: (f"wandb login {HEX}", f"key is {HEX}"),
    "9f8e7d6c5b4a39281706": ("invalid token 9f8e7d6c5b4a39281706",),
}  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_redaction_of_the_forms_of_command_lines_hides_each(secret: str) -> None:
    assert [text for text in SECRETS[secret] if secret in redacted_text(text, {})] == []


ORDINARY = (
    "git checkout 4f9d3c2 -- train.py",
    f"at revision {HEX}",
    f"commit {HEX}",
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
    "max_tokens=4096, pad_token_id=50256",
    "tcp://10.0.0.1:29500 and http://[::1]:80/a@b",
    "KeyError: 'secret'",
    'File "/home/ada/secrets.py", line 3, in load_secret_keys',
    "task-abcdefghijklmnopqrstuvwxyz-1",
    "step 4181 loss 2.31 --lr 0.1",
    "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:4711",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_redaction_of_ordinary_text_changes_nothing(text: str) -> None:
    assert redacted_text(text, {}) == text


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("hunter2hunter2", ("MY_KEY", "MY_AUTH", "DB_PASSWORD")),
        ("Swordfish!", ("MY_KEY", "MY_AUTH")),
        ("correct-horse-battery", ("MY_KEY", "MY_AUTH")),
        ("swordfish", ("DB_PASSWORD", "DB_PASS", "MY_TOKEN", "SECRET_KEY")),
    ],
)
def test_redaction_of_a_secret_value_hides_it(value: str, names: tuple[str, ...]) -> None:
    """A password may be a word."""
    for name in names:
        assert value not in redacted_text(f"connecting with {value} as the key", {name: value})


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


def test_a_secret_that_is_no_text_is_hidden_like_another() -> None:
    secret = "p\udce4ssw\udcf6rt1"
    assert redacted_text(f"connects with {secret}", {"DB_PASSWORD": secret}) == "connects with ***"


@pytest.mark.parametrize("sign", ["a", "-", "a-", "sk-", "eyJ", "://a:", "password=", "--a-", "bearer ", '"'])
def test_a_long_line_costs_no_minutes(sign: str) -> None:
    """Whatever a rank writes, its report is made in time: no pattern goes over a line again and again."""
    assert redacted_text(sign * 20_000, {"API_KEY": "hunter2hunter2"})


def test_codes_stay_codes() -> None:
    """Rules compare them by identity."""
    rank = E.RankEvidence(0, 0, 1, "a", stacks_from=E.StackSource.RANK, no_stacks=E.Missing.NO_ANSWER)
    (found,) = redacted(E.NodeEvidence("a", E.HANG, ranks=(rank,)), {"MY_TOKEN": "no_answer"}).ranks
    assert found.no_stacks is E.Missing.NO_ANSWER and found.stacks_from is E.StackSource.RANK
