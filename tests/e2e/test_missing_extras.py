"""Commands where optional packages are not installed: what they need is named, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT = """
import sys
absent = set(sys.argv.pop(1).split(","))
class Present:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in absent:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Present, sys.meta_path)
from assay.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
_EXTRAS = {
    "agent": "cryptography,langgraph,pytest",
    "chat and bench": "jsonschema,prompt_toolkit,yaml",
    "data": "matplotlib,numpy,pandas,sklearn",
    "docker and executor": "docker,google,grpc,grpc_health,grpc_reflection",
    "local": "xllamacpp",
    "packages": "uv",
    "providers": "anthropic,genai_prices,openai",
    "serve": "fastapi,limits,mcp,opentelemetry,prometheus_client,psycopg,uvicorn",
}
_ALL = ",".join((*_EXTRAS.values(), "e2b", "e2b_code_interpreter", "httpx"))


def test_the_doctor_needs_no_extra(tmp_path: Path) -> None:
    done = _assay(_ALL, tmp_path, "doctor")

    assert "Traceback" not in done.stderr
    assert "the Docker backend needs an extra" in done.stdout


@pytest.mark.parametrize("absent", [_ALL, _EXTRAS["docker and executor"]])
def test_checking_an_executor_names_its_extra(absent: str, tmp_path: Path) -> None:
    done = _assay(absent, tmp_path, "executor", "check")

    assert "Traceback" not in done.stderr
    assert "[executor]" in done.stderr


@pytest.mark.parametrize(
    ("absent", "words", "extras"),
    [
        (_ALL, ("run", "goal", "--model", "local"), "agent,local"),
        (_ALL, ("run", "goal"), "agent,local"),
        (_EXTRAS["agent"], ("run", "goal", "--model", "local"), "agent"),
        (
            _ALL,
            ("run", "goal", "--model", "groq:x", "--backend", "docker", "--package", "six"),
            "agent,openai,docker,packages",
        ),
        (_ALL, ("chat", "hi", "--model", "local", "--backend", "remote"), "chat,local,executor"),
        (_ALL, ("bench", "run", "polyglot", "--model", "stub"), "agent,bench"),
        (_ALL, ("serve", "--backend", "e2b"), "serve,e2b"),
    ],
)
def test_all_missing_extras_are_named_together(
    absent: str, words: tuple[str, ...], extras: str, tmp_path: Path
) -> None:
    done = _assay(absent, tmp_path, *words)

    assert f"pip install 'assay-agent[{extras}]'" in done.stderr
    assert done.stderr.count("\n") == 2
    assert done.returncode == 2
    # Nothing that could be resumed was begun.
    assert [each.name for each in tmp_path.glob(".local/state/assay/*")] == ["logs"]


@pytest.mark.parametrize("command", [("--help",), ("models",)])
def test_other_commands_need_no_extra(command: tuple[str, ...], tmp_path: Path) -> None:
    assert _assay(_ALL, tmp_path, *command).stderr == ""


def _assay(absent: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as if some packages were not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, absent, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"},
        timeout=100,
    )
