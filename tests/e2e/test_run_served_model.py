"""`assay run` with models of servers: what a large and an unknown model are asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.chat_endpoint import ChatEndpoint, serve_chat

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
QWEN = {"id": "qwen3-coder-480b", "max_model_len": 262_144}


def run(
    folder: Path, model: str, variable: str, endpoint: ChatEndpoint
) -> subprocess.CompletedProcess[str]:
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "test_calc.py").write_text(TEST)
    settings = {"XDG_STATE_HOME": str(folder / "state"), "ASSAY_SANDBOX__POOL_SIZE": "0"}
    goal = ("run", "Write calc.py with add(a, b)", "--tests", "test_calc.py")
    return subprocess.run(
        [sys.executable, "-m", "assay", *goal, "--model", model, "--attempts", "1", "--yes"],
        cwd=workspace,
        env={**os.environ, **settings, variable: endpoint.base_url, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_large_model_behind_vllm_gets_tools_and_its_own_length(tmp_path: Path) -> None:
    with serve_chat(listing=json.dumps({"data": [QWEN]}).encode()) as endpoint:
        done = run(tmp_path, "vllm:qwen3-coder-480b", "ASSAY_MODELS__BASE_URLS__VLLM", endpoint)

    assert endpoint.asked, done.stderr
    tools = {tool["function"]["name"] for tool in endpoint.asked[0]["tools"]}
    assert {"write_file", "edit_file", "run", "done"} <= tools
    assert endpoint.asked[0]["max_tokens"] == 65_536
    assert "is not known" not in done.stderr


def test_a_model_of_unknown_name_is_usable_and_one_line_says_what_is_assumed(
    tmp_path: Path,
) -> None:
    with serve_chat("mine") as endpoint:
        done = run(tmp_path, "custom:mine", "ASSAY_BASE_URL", endpoint)

    assert endpoint.asked, done.stderr
    assert endpoint.asked[0]["tools"]
    assert endpoint.asked[0]["max_tokens"] == 8_192
    (line,) = (line for line in done.stderr.splitlines() if "is not known" in line)
    assert 'set context_tokens under [models."custom:mine"]' in line
