"""A workspace full of secrets, in each command: none reaches a model, a sandbox or the disk."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.keyed_chat import serve_keyed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Made up, and in halves, so that no scanner of this repository takes them for real.
_BODY: Final = "q7BFUpkGp3yLGQhQ1Zb7tX0vD2sKcWn5uJ4oRrEaYhMiTf8gMIIEowIBAAKCAQEA"
_PEM: Final = f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{_BODY}\n"
_TOKEN: Final = "9fK2mQ7xLr4TzW8bNc3VyH6sJd1PgE5uAo0R"  # noqa: S105 - made up
_PASSWORD: Final = "kT7mQ2xLr4TzW8b"  # noqa: S105 - made up
_SECRETS: Final = {
    ".env": f"DB_PASS={_PASSWORD}\nOPENAI_API_KEY=sk-{_TOKEN}\n",
    ".env.production": f"DB_PASS={_PASSWORD}\n",
    "server.pem": _PEM,
    "id_rsa": _PEM,
    ".npmrc": f"//registry.example/:_authToken={_TOKEN}\n",
    ".pypirc": f"[pypi]\npassword = {_PASSWORD}\n",
    ".netrc": f"machine git.internal login bob password {_PASSWORD}\n",
    ".git-credentials": f"https://bob:{_PASSWORD}@git.internal\n",
    "kubeconfig": f"token: {_TOKEN}\n",
    "deploy/account.json": json.dumps({"type": "service_account", "private_key": _PEM}),
    "conf/a.json": f'{{"token": "ghp_{_TOKEN}"}}',
    "conf/b.yaml": f"password: {_PASSWORD}\n",
    "conf/c.toml": f'api_key = "{_TOKEN}"\n',
    "conf/d.txt": f"the token is ghp_{_TOKEN}\n",
    "ignored.json": f'["{_PASSWORD}"]',
    "sub/private/x.txt": _PASSWORD,
    "sub/kept.log": _PASSWORD,
}
_RULES: Final = {
    ".gitignore": "ignored.json\n*.log\n!open.log\n",
    "sub/.gitignore": "private/\n",
}
_READ: Final = {"open.log": "seen", "tokens.py": "TOKEN = 'token'\n", ".env.example": "DB_PASS=\n"}
_TEST: Final = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
_RIGHT: Final = "def add(a, b):\n    return a + b\n"
_LIST: Final = """\
import os
for folder, _, names in os.walk("."):
    for name in names:
        path = os.path.join(folder, name)
        print(path, open(path, "rb").read()[:20_000])
"""
_VALUES: Final = (_BODY, _TOKEN, _PASSWORD)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    given = {"test_calc.py": _TEST, "listing.py": _LIST}
    for name, text in {**_SECRETS, **_RULES, **_READ, **given}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ".git").mkdir()
    return folder


def assay(home: Path, words: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    quick = {"ASSAY_SANDBOX__PRELOAD": "", "ASSAY_SANDBOX__POOL_SIZE": "0"}
    return subprocess.run(
        [sys.executable, "-m", "assay", *words],
        env={"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8", **quick, **env},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def kept_below(folder: Path) -> str:
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return b"\n".join(contents).decode("utf-8", "replace")


def test_no_secret_of_a_workspace_reaches_model_sandbox_or_disk(
    workspace: Path, tmp_path: Path
) -> None:
    reply = f"FILE: calc.py\n```python\n{_RIGHT}```\nDONE"
    state = str(tmp_path / "state")
    words = ["run", "Write calc.py", "--workspace", "work", "--tests", "test_calc.py", "--yes"]
    words += ["--check", "python3 listing.py", "--model", "custom:keyed", "--json"]
    with serve_keyed({"": [reply]}) as chat:
        known = {"ASSAY_STATE_DIR": state, "ASSAY_BASE_URL": chat.base_url}
        done = assay(tmp_path, [*words, "--events", "events.jsonl"], **known)
        assert done.returncode in {0, 1}, done.stderr
        outcome = json.loads(done.stdout)
        said = [done.stdout, done.stderr, json.dumps(chat.heard)]
        for command in ("resume", "show", "replay"):
            again = assay(tmp_path, [command, outcome["run"]], **known)
            assert "Traceback" not in again.stderr
            said += [again.stdout, again.stderr, json.dumps(chat.heard)]
        if outcome["certificate"]:
            proof = assay(tmp_path, ["verify", outcome["certificate"]], **known)
            assert proof.returncode == 0, proof.stdout + proof.stderr
            said += [proof.stdout, proof.stderr]

    assert chat.heard
    said += [(tmp_path / "events.jsonl").read_text(), kept_below(Path(state))]
    assert [value for value in _VALUES for text in said if value in text] == []
    withheld = {one["path"] for one in outcome["withheld"]}
    assert withheld == set(_SECRETS) - {"sub/private/x.txt"} | {"sub/private"}
    assert "seen" in kept_below(Path(state))
    assert {name: (workspace / name).read_text() for name in _SECRETS} == _SECRETS


def test_no_secret_of_a_folder_reaches_a_sandbox_unless_it_is_included(
    workspace: Path, tmp_path: Path
) -> None:
    del workspace
    words = ["sandbox", "run", "--workspace", "work"]
    listing = ["--", "python3", "listing.py"]

    hidden = assay(tmp_path, [*words, *listing])
    shown = assay(tmp_path, [*words, "--include", "conf/b.yaml", *listing])

    assert hidden.returncode == shown.returncode == 0, hidden.stderr
    assert [value for value in _VALUES if value in hidden.stdout + hidden.stderr] == []
    assert "open.log" in hidden.stdout
    [told] = [line for line in hidden.stderr.splitlines() if line.startswith("withheld: ")]
    assert all(name in told for name in _SECRETS if not name.startswith("sub/private"))
    assert told.endswith("--include PATH uses one")
    assert [value for value in _VALUES if value in shown.stdout] == [_PASSWORD]
    assert "./conf/b.yaml" in shown.stdout
    assert "./.env " not in shown.stdout
