import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.text.redaction import HIDDEN, redact

# Made up, and in halves, so that no scanner of this repository takes them for real.
SECRETS = [
    "sk-" + "proj-abcDEF1234567890abcDEF",
    "sk-ant-" + "api03-abcdefghijklmnopqrstuv",
    "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrst",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "xoxb-" + "123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "e2b_" + "4c81d0a7f2e95b3c6d18",
    "hf_" + "abcdefghijklmnopqrstuvwxyzABCD",
    "sk_live_" + "abcdefghijklmnop",
    "9f86d081884c7d659a2feaa0c55ad015" + "a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY" + "1234",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key = '{}'\n", "refused: {}, try again", "[{}]"])
def test_a_secret_is_hidden_wherever_it_stands(secret: str, around: str) -> None:
    shown = redact(around.format(secret))

    assert secret not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('password = "hunter2"', "hunter2"),
        ("DB_PASSWORD=hunter2", "hunter2"),
        ("DB_PASS=hunter2", "hunter2"),
        ("MY_TOKEN=hunter2", "hunter2"),
        ("amqp://bob:hunter2@queue.example/x", "hunter2"),
        ("redis://:hunter/2@queue.example:6379", "hunter/2"),
        ("connect to bob:hunter2@db.example:5432", "hunter2"),
        ("pw: hunter2", "hunter2"),
        ("-----BEGIN PGP " + "PRIVATE KEY BLOCK----- hunter2", "hunter2"),
        ('{"api_key": "abc123xyz"}', "abc123xyz"),
        ("client_secret: 'abc123xyz'", "abc123xyz"),
        ("mysql --password hunter2 -u root", "hunter2"),
        ("postgres://bob:hunter2@db.example/x", "hunter2"),
        ("Authorization: Bearer abc123xyz789", "abc123xyz789"),
        ("curl -H 'X-API-Key: abc123xyz'", "abc123xyz"),
        ("Cookie: session=abc123xyz", "abc123xyz"),
    ],
)
def test_what_is_called_a_secret_is_hidden(text: str, hidden: str) -> None:
    assert hidden not in redact(text)


def test_a_private_key_is_hidden_also_when_it_is_cut_off() -> None:
    begin = "-----BEGIN RSA " + "PRIVATE KEY-----"
    key = f"{begin}\nMIIEowIBAAKCAQEA\nabcdef\n"

    assert "MIIEow" not in redact(f"before\n{key}")
    assert redact(f"before\n{key}") == f"before\n{HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "NameError: name 're' is not defined (in durations.py: parse_duration)",
        "def check(password: str, token: bytes) -> bool:",
        "token = None",
        "token = next(tokens)",
        "if token == expected:",
        "tokens = text.split()",
        "return frame.groupby('month')['revenue'].sum()",
        "test_a_very_long_name_of_a_test_that_has_more_than_forty_characters",
        "src/assay/memory/something/quite/deep/in/the/tree/of/folders.py",
        "https://example.org/a/path?with=a&query=string",
        "",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text())
def test_what_was_redacted_once_stays_the_same(text: str) -> None:
    once = redact(text)

    assert redact(once) == once
