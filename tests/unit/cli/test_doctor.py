import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from assay.cli.doctor import fixes, progress, report_fields, show, verdict
from assay.cli.doctor_checks import look_at_keys
from assay.contracts.distribution import install_command
from assay.contracts.execution import Isolation
from assay.sandbox.native.doctor.explain import Finding
from assay.sandbox.native.doctor.probes import Proof, Report
from assay.settings.load import ModelSettings

WORKS = Finding(name="seccomp", status="ok", detail="refuses what it should")
BROKEN = Finding(
    name="user namespace",
    status="failed",
    detail="clone: no",
    cause="user.max_user_namespaces is 0",
    fix="sudo sysctl -w user.max_user_namespaces=15000",
)
PROOF = Proof(backend="native", isolation=Isolation.ISOLATED, run_ms=4.06)


def a_report(*findings: Finding, proof: Proof | None = PROOF) -> Report:
    return Report(
        findings=findings,
        native=proof.isolation if proof else None,
        limits_kept_by="cgroup v1",
        proof=proof,
    )


def shown(report: Report, *, terminal: bool = False, width: int = 200) -> str:
    output = StringIO()
    show(
        report,
        Console(
            file=output,
            force_terminal=terminal,
            width=width,
            highlight=False,
            legacy_windows=False,
            color_system="standard" if terminal else None,
        ),
    )
    return output.getvalue()


def test_a_finding_is_shown_with_its_cause_and_what_would_help() -> None:
    text = shown(a_report(WORKS, BROKEN))

    assert "seccomp" in text
    assert "clone: no: user.max_user_namespaces is 0" in text
    assert "\nSuggested fixes:\n  user namespace: sudo sysctl -w user.max_user_name" in text


def test_a_command_to_copy_is_in_one_piece_however_narrow_the_terminal() -> None:
    text = shown(a_report(BROKEN), terminal=True, width=40)

    assert "sudo sysctl -w user.max_user_namespaces=15000" in text


def test_square_brackets_are_text_and_not_markup() -> None:
    missing = Finding(
        name="numpy", status="failed", detail="[red]x[/red]", fix="pip install 'other[part]'"
    )

    text = shown(a_report(missing))

    assert "[red]x[/red]" in text
    assert "'other[part]'" in text


def test_a_pipe_gets_no_escape_codes() -> None:
    assert "\x1b" not in shown(a_report(WORKS, BROKEN))
    assert "\x1b" in shown(a_report(WORKS, BROKEN), terminal=True)


def test_what_helps_with_several_things_is_said_once() -> None:
    other = Finding(name="uid map", status="failed", detail="no", fix=BROKEN.fix)

    assert fixes([BROKEN, WORKS, other]) == {BROKEN.fix: ["user namespace", "uid map"]}


def test_nothing_to_do_is_not_announced() -> None:
    assert "Suggested fixes" not in shown(a_report(WORKS))


@pytest.mark.parametrize("grade", list(Isolation))
def test_the_verdict_says_backend_grade_and_who_keeps_the_limits(grade: Isolation) -> None:
    proof = Proof(backend="native", isolation=grade, run_ms=4.06)

    text = " ".join(verdict(a_report(proof=proof)))

    assert f"the native sandbox, {grade.value}:" in text
    assert "Limits are kept by cgroup v1" in text
    assert "4.1 ms" in text


def test_without_a_proof_the_verdict_promises_nothing() -> None:
    (line,) = verdict(a_report(BROKEN, proof=None))

    assert line.startswith("This machine cannot isolate programs")


def test_a_report_is_plain_json() -> None:
    fields = json.loads(json.dumps(report_fields(a_report(WORKS, BROKEN))))

    assert fields["usable"] is True
    assert (fields["backend"], fields["isolation"]) == ("native", "isolated")
    assert (fields["native"], fields["limits_kept_by"]) == ("isolated", "cgroup v1")
    assert fields["findings"][1] == {
        "name": "user namespace",
        "status": "failed",
        "detail": "clone: no",
        "cause": "user.max_user_namespaces is 0",
        "fix": "sudo sysctl -w user.max_user_namespaces=15000",
    }


def test_a_report_without_proof_names_no_backend() -> None:
    fields = report_fields(a_report(BROKEN, proof=None))

    assert fields["usable"] is False
    assert fields["backend"] is fields["isolation"] is fields["run_ms"] is None


def test_every_name_is_shown_however_quickly_the_next_follows() -> None:
    output = StringIO()
    console = Console(file=output, force_terminal=True, legacy_windows=False)

    with progress(console) as tell:
        for number in range(20):
            tell(f"part {number} of all")

    assert [
        number for number in range(20) if f"checking: part {number} of" not in output.getvalue()
    ] == []


def test_what_was_left_out_by_choice_is_one_line_and_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    numpy = Finding(
        name="numpy", status="missing", detail="not installed", fix=install_command("data")
    )
    sections = {
        "keys": tuple(look_at_keys(ModelSettings())),
        "extras": (
            Finding(name="agent", status="ok", detail="installed"),
            Finding(name="chat", status="info", detail="no", fix=install_command("chat")),
            Finding(name="mcp", status="info", detail="no", fix=install_command("mcp")),
        ),
    }
    output = StringIO()

    show(a_report(numpy), Console(file=output, width=2000), sections)

    text = output.getvalue()
    assert "Suggested fixes" not in text
    (line,) = [line for line in text.splitlines() if "chat" in line]
    assert line.split() == [
        "available",
        "info",
        "chat,",
        "mcp:",
        "pip",
        "install",
        "'assay-agent[NAME]'",
    ]
    (line,) = [line for line in text.splitlines() if "OPENAI_API_KEY" in line]
    assert "GROQ_API_KEY" in line
    assert str(tmp_path / "assay" / "credentials.toml") in line
