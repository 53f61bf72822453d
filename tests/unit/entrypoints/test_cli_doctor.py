import json
from io import StringIO

import pytest
from rich.console import Console

from assay.contracts.execution import Isolation
from assay.entrypoints.cli_doctor import fixes, report_fields, show, verdict
from assay.sandbox.native.diagnosis import Finding
from assay.sandbox.native.probes import Proof, Report

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
    assert "\nWhat would help:\n  user namespace: sudo sysctl -w user.max_user_name" in text


def test_a_command_to_copy_is_in_one_piece_however_narrow_the_terminal() -> None:
    text = shown(a_report(BROKEN), terminal=True, width=40)

    assert "sudo sysctl -w user.max_user_namespaces=15000" in text


def test_square_brackets_are_text_and_not_markup() -> None:
    missing = Finding(
        name="numpy", status="missing", detail="[red]x[/red]", fix="pip install 'assay[data]'"
    )

    text = shown(a_report(missing))

    assert "[red]x[/red]" in text
    assert "'assay[data]'" in text


def test_a_pipe_gets_no_escape_codes() -> None:
    assert "\x1b" not in shown(a_report(WORKS, BROKEN))
    assert "\x1b" in shown(a_report(WORKS, BROKEN), terminal=True)


def test_what_helps_with_several_things_is_said_once() -> None:
    other = Finding(name="uid map", status="failed", detail="no", fix=BROKEN.fix)

    assert fixes([BROKEN, WORKS, other]) == {BROKEN.fix: ["user namespace", "uid map"]}


def test_nothing_to_do_is_not_announced() -> None:
    assert "What would help" not in shown(a_report(WORKS))


@pytest.mark.parametrize("grade", list(Isolation))
def test_the_verdict_says_backend_grade_and_who_keeps_the_limits(grade: Isolation) -> None:
    proof = Proof(backend="native", isolation=grade, run_ms=4.06)

    text = " ".join(verdict(a_report(proof=proof)))

    assert f"the native sandbox, {grade.value}:" in text
    assert "Limits are kept by cgroup v1" in text
    assert "4.1 ms" in text


def test_without_a_proof_the_verdict_promises_nothing() -> None:
    (line,) = verdict(a_report(BROKEN, proof=None))

    assert line.startswith("No program can be isolated")


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
