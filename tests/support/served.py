"""`assay serve` as a process of its own, with a scripted model, on a port of this machine."""

import json
import os
import signal
import subprocess  # noqa: TID251 - the command is looked at from outside
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ASSAY = (sys.executable, "-m", "assay")
TALKATIVE: tuple[dict[str, Any], ...] = ({"text": "I see.", "repeat": True},)
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a * b\n"
GOAL = {
    "goal": "Write calc.py with add(a, b)",
    "tests": ["test_calc.py"],
    "files": [{"path": "test_calc.py", "text": TEST}],
}
SMALL: dict[str, Any] = {"facts": {"local": True, "small": True, "tool_calls": False}}


def script(path: Path, lines: Sequence[dict[str, Any]]) -> str:
    """Write what the model is to say; returns its name."""
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return f"scripted:{path}"


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the process finds: a state folder of its own, and no pool."""
    state = {"XDG_STATE_HOME": str(folder / "state"), "ASSAY_SANDBOX__POOL_SIZE": "0"}
    return {**os.environ, **state, "NO_COLOR": "1", **(more or {})}  # noqa: TID251 - as above


def key_for(folder: Path, name: str, *words: str, more: Mapping[str, str] | None = None) -> str:
    """Make a key, as an admin does it on the machine."""
    made = subprocess.run(
        [*ASSAY, "keys", "create", name, *words],
        env=environment(folder, more),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return made.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that runs."""

    url: str
    process: subprocess.Popen[str]
    folder: Path
    log: Path

    def client(self, key: str = "", **more: Any) -> httpx.Client:
        """Return somebody who asks it."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **more)

    def stop(self) -> int:
        """Ask it to end, and wait."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """End it as a power failure would, and wait."""
        self.process.kill()
        self.process.wait(30)


@contextmanager
def served(
    folder: Path,
    lines: Sequence[dict[str, Any]] = TALKATIVE,
    *words: str,
    more: Mapping[str, str] | None = None,
    port: int = 0,
) -> Generator[Served]:
    """Serve until this ends; what is left of it then is killed."""
    folder.mkdir(exist_ok=True)
    model = script(folder / "script.jsonl", lines)
    log = folder / "serve.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [
                *ASSAY,
                "serve",
                "--port",
                str(port),
                "--json",
                "--log-json",
                "--model",
                model,
                *words,
            ],
            env=environment(folder, more),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Served(url=json.loads(line)["url"], process=process, folder=folder, log=log)
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def events(client: httpx.Client, path: str, **params: Any) -> list[tuple[int, str, dict[str, Any]]]:
    """Read a stream to its end: number, kind and fields of each event."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    text = client.get(path, params=params).text
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if fields:
            number = int(fields.get("id", 0))
            found.append((number, fields["event"], json.loads(fields["data"])))
    return found
