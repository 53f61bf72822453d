"""`assay models` from outside: what is usable, one real request, and what it says when it fails."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pexpect
import pytest

from assay.contracts.errors import ExitCode
from tests.support.chat_endpoint import ChatEndpoint, serve_chat

SECRET = "sk-secret-0123456789"  # noqa: S105 - opens nothing
SERVERS = ("OLLAMA", "LMSTUDIO", "LLAMACPP", "VLLM")
MODELS = (sys.executable, "-m", "assay", "models")


@pytest.fixture(scope="module")
def nowhere() -> str:
    """An address where nothing listens, because whoever did has gone."""
    with serve_chat() as endpoint:
        return endpoint.base_url


@pytest.fixture
def home(tmp_path: Path, nowhere: str) -> dict[str, str]:
    """The variables of a person without keys, servers or weights."""
    urls = {f"ASSAY_MODELS__BASE_URLS__{name}": nowhere for name in SERVERS}
    return {
        **urls,
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def endpoint() -> Generator[ChatEndpoint]:
    with serve_chat("first") as served:
        yield served


def assay_models(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODELS, *words],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def script(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def test_the_list_says_what_is_usable_and_why_the_rest_is_not(home: dict[str, str]) -> None:
    shown = assay_models({**home, "ANTHROPIC_API_KEY": SECRET})

    assert (shown.returncode, shown.stderr) == (ExitCode.ACCEPTED, "")
    lines = {line.split(maxsplit=1)[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert "ANTHROPIC_API_KEY is set" in next(
        line for name, line in lines.items() if name.startswith("anthropic:")
    )
    assert "nothing answers at http://127.0.0.1" in lines["ollama"]
    assert "fetches 1.1 GB at first use" in lines["local:qwen2.5-coder-1.5b"]
    assert "OPENAI_API_KEY is not set" in shown.stdout
    assert "`auto` takes anthropic:" in shown.stdout.splitlines()[-1]
    assert SECRET not in shown.stdout


def test_the_list_can_be_read_by_programs(home: dict[str, str]) -> None:
    shown = assay_models(home, "--json")

    found = json.loads(shown.stdout)
    (taken,) = (one for one in found if one["by_auto"])
    assert shown.returncode == ExitCode.ACCEPTED
    assert set(taken) == {"name", "title", "usable", "reason", "fix", "by_auto"}
    assert (taken["name"], taken["usable"]) == ("local:qwen2.5-coder-1.5b", True)


def test_one_request_is_sent_and_what_it_took_is_shown(
    home: dict[str, str], endpoint: ChatEndpoint
) -> None:
    env = {**home, "ASSAY_BASE_URL": endpoint.base_url, "ASSAY_API_KEY": SECRET}

    shown = assay_models(env, "test", "custom")

    assert shown.returncode == ExitCode.ACCEPTED, shown.stderr
    first, answer, took = shown.stdout.splitlines()
    assert (first, answer) == ("custom:first answered:", "ready")
    assert took.endswith("20 tokens read, 2 written, cost unknown")
    assert endpoint.asked[0]["messages"][0]["content"] == "Reply with the single word: ready"
    assert set(endpoint.keys) == {SECRET}


def test_the_properties_of_a_model_come_with_their_sources(
    home: dict[str, str], endpoint: ChatEndpoint, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[models."custom:first"]\ncontext_tokens = 100000\n')
    env = {**home, "ASSAY_BASE_URL": endpoint.base_url, "ASSAY_CONFIG": str(config)}

    shown, read = assay_models(env, "info", "custom"), assay_models(env, "info", "custom", "--json")

    first, *rows = shown.stdout.splitlines()
    assert (shown.returncode, first) == (ExitCode.ACCEPTED, "custom:first"), shown.stderr
    assert rows[0].split() == ["context_tokens", "100,000", "settings"]
    assert rows[-1].split() == ["price", "unknown", "default"]
    found = json.loads(read.stdout)
    assert found["properties"]["max_output_tokens"] == {"value": 25_000, "source": "default"}
    assert endpoint.asked == [], "nothing is asked of the model"


def test_auto_can_be_tested_and_says_what_it_took(
    home: dict[str, str], endpoint: ChatEndpoint
) -> None:
    env = {
        **home,
        "OPENAI_API_KEY": SECRET,
        "ASSAY_MODELS__BASE_URLS__OPENAI": endpoint.base_url,
    }

    shown = assay_models(env, "test", "auto")

    assert shown.returncode == ExitCode.ACCEPTED, shown.stderr
    assert shown.stderr.startswith("using openai:")
    assert "cost $0.000" in shown.stdout


def test_the_model_of_the_settings_is_tested_if_none_is_named(
    home: dict[str, str], tmp_path: Path
) -> None:
    name = script(tmp_path, {"text": "ready", "usage": {"input_tokens": 9, "output_tokens": 1}})

    shown = assay_models({**home, "ASSAY_MODELS__DEFAULT": name}, "test", "--json")

    tested = json.loads(shown.stdout)
    assert (tested["name"], tested["text"], tested["stop_reason"]) == (name, "ready", "ended")
    assert (tested["input_tokens"], tested["output_tokens"], tested["cost_usd"]) == (9, 1, 0.0)
    assert tested["reply_s"] >= 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("test", "opnai:gpt"), ExitCode.USAGE, "hint: did you mean `openai:gpt`?"),
        (("test", "openai:gpt"), ExitCode.USAGE, "hint: set OPENAI_API_KEY"),
        (("test", "scripted:/no/such"), ExitCode.USAGE, "error: cannot read the script"),
        (("info", "local"), ExitCode.USAGE, "error: 'local' is no model of a provider or server"),
        (("test", "replay:/no/such"), ExitCode.USAGE, "error: there is no recording"),
        (("test", "ollama"), ExitCode.INFRASTRUCTURE, "error: ollama does not answer at http"),
        (("pull", "nothing"), ExitCode.USAGE, "error: there is no embedded model 'nothing'"),
        (("push",), ExitCode.USAGE, "error: no such command 'push'"),
    ],
)
def test_a_failure_is_a_line_with_a_hint_and_an_exit_code(
    home: dict[str, str], words: tuple[str, ...], code: int, told: str
) -> None:
    shown = assay_models(home, *words)

    assert (shown.returncode, shown.stdout) == (code, "")
    assert told in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_provider_that_quotes_the_key_does_not_make_us_show_it(
    home: dict[str, str], endpoint: ChatEndpoint
) -> None:
    endpoint.statuses = [401]
    env = {
        **home,
        "OPENAI_API_KEY": SECRET,
        "ASSAY_MODELS__BASE_URLS__OPENAI": endpoint.base_url,
    }

    shown = assay_models(env, "test", "openai")

    assert shown.returncode == ExitCode.INFRASTRUCTURE
    assert "answered 401: not now, [key]" in shown.stderr
    assert SECRET not in shown.stdout + shown.stderr


def test_a_budget_that_does_not_allow_the_request_stops_it(
    home: dict[str, str], endpoint: ChatEndpoint
) -> None:
    env = {
        **home,
        "OPENAI_API_KEY": SECRET,
        "ASSAY_MODELS__BASE_URLS__OPENAI": endpoint.base_url,
        "ASSAY_MODELS__BUDGET__USD": "0.0001",
    }

    shown = assay_models(env, "test", "openai")

    assert shown.returncode == ExitCode.BUDGET
    assert "of $0.0001 is left" in shown.stderr
    assert endpoint.asked == []


def test_what_is_to_be_fetched_is_said_before_and_an_interruption_ends_it(
    home: dict[str, str],
) -> None:
    # The index is one that takes connections and says nothing, so that it is always in time.
    with serve_chat(silent=True) as silent:
        env = {
            **home,
            "PIP_INDEX_URL": silent.base_url,
            "https_proxy": silent.base_url.removesuffix("/v1"),
        }
        child = pexpect.spawn(
            MODELS[0],
            [*MODELS[1:], "pull"],
            env=env,
            timeout=60,
            encoding="utf-8",
            dimensions=(24, 200),
        )
        child.expect(r"fetching Qwen2\.5-Coder 1\.5B .* once: 1\.1 GB into .*\(Apache-2\.0\)")
        child.expect("0.0/1.1 GB")
        child.sendintr()
        child.expect("error: .*interrupted")
        child.expect(pexpect.EOF)
        child.wait()

    assert child.exitstatus == ExitCode.INTERRUPTED
