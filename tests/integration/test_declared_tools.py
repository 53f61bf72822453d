"""Tools declared in files, in a real sandbox and on the command line."""

import json
from pathlib import Path, PurePosixPath

import pytest

from assay.cli.main import run
from assay.settings.load import SandboxSettings
from assay.tools.discover import SHIPPED
from assay.tools.yaml_tool import load_tool
from assay.wiring import open_sandbox


async def test_shipped_tools_and_tools_that_misbehave_in_a_real_sandbox(
    tmp_path: Path, runtime_dir: Path
) -> None:
    table = load_tool(SHIPPED / "describe_table.yaml")
    compare = load_tool(SHIPPED / "compare_files.yaml")
    misbehaving = tmp_path / "x.yaml"
    head = "name: x\ndescription: x\nlimits: {timeout_s: 1}\nrun: "
    answers: dict[str, str] = {}
    settings = SandboxSettings(preload=(), pool_size=0, runtime_dir=runtime_dir)
    async with open_sandbox(settings=settings) as box:
        await box.write_file(PurePosixPath("a.csv"), b"city,people\nUlm,120000\nBonn,\n")
        await box.write_file(PurePosixPath("b.csv"), b"city,people\nUlm,120001\nBonn,\n")
        described = await table.call({"path": "a.csv"}, box)
        unreadable = await table.call({"path": "none.csv"}, box)
        compared = await compare.call({"old": "a.csv", "new": "b.csv"}, box)
        for name, argv in {
            "hangs": '["sleep", "60"]',
            "floods": '["yes"]',
            "dies": '["sh", "-c", "kill -9 $$"]',
            "is missing": '["no-such-program"]',
        }.items():
            misbehaving.write_text(head + f"{{argv: {argv}}}")
            answers[name] = await load_tool(misbehaving).call({}, box)

    assert "2 rows, 2 columns" in described
    assert "120000" in described
    assert "cannot be read as a table" in unreadable
    assert "-Ulm,120000" in compared
    assert "+Ulm,120001" in compared
    assert "its time was up" in answers["hangs"]
    assert "printed too much" in answers["floods"] or "its time was up" in answers["floods"]
    assert "SIGKILL" in answers["dies"]
    assert "could not be started" in answers["is missing"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "project"
    (folder / ".assay" / "tools").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def a_tool(project: Path, name: str, text: str) -> None:
    (project / ".assay" / "tools" / name).write_text(text)


def test_tools_are_listed_with_origin_and_approval(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_tool(project, "a.yaml", "name: mine\ndescription: Do.\nrun: {argv: [ls]}\napproval: allow\n")
    a_tool(project, "b.yaml", "name: [")

    assert run(["tools", "list", "--json"]) == 0

    captured = capsys.readouterr()
    listed = {each["name"]: each for each in json.loads(captured.out)}
    assert listed["mine"]["approval"] == "ask"
    assert listed["mine"]["origin"].endswith("a.yaml")
    assert listed["describe_table"]["approval"] == "allow"
    assert "b.yaml, line 1" in captured.err

    assert run(["tools", "list"]) == 0
    assert "mine" in capsys.readouterr().out


def test_checking_names_every_fault_and_says_so_by_its_exit_code(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_tool(project, "a.yaml", "name: mine\ndescription: Do.\nrun: {argv: [ls]}\n")
    assert run(["tools", "check"]) == 0
    assert "3 of 3 files are valid" in capsys.readouterr().out

    a_tool(project, "b.yaml", "name: bad\ndescription: Do.\nrun: {argv: ['{x}']}\n")
    assert run(["tools", "check", "--json"]) == 2
    checked = json.loads(capsys.readouterr().out)
    assert "mine" in checked["tools"]
    assert "b.yaml, line 3, run.argv.0: there is no argument 'x'" in checked["faults"][0]

    assert run(["tools", "check", "nowhere.yaml"]) == 2
    assert "cannot read" in capsys.readouterr().out
