"""A certificate says what was accepted, and shows every change that is made to it."""

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import ExitCode, JournalError, UsageError
from assay.contracts.goal import RunSpec
from assay.contracts.messages import Usage
from assay.contracts.verdict import (
    CheckReport,
    Finding,
    Grade,
    TamperKind,
    TestResult,
    TestStatus,
    Verdict,
)
from assay.contracts.workspace import Tree, TreeFile
from assay.storage.certificates import (
    Certificate,
    Proof,
    build_certificate,
    canonical,
    compare_files,
    describe_environment,
    read_certificate,
    write_certificate,
)
from assay.storage.signing_keys import public_key, signing_key

TESTS = PurePosixPath("tests/test_add.py")
CODE = PurePosixPath("add.py")
TOOL = PurePosixPath("bin/tool")
PRISTINE = Tree(
    files={
        TESTS: TreeFile(b"def test_add(): ...\n"),
        TOOL: TreeFile(b"#!/bin/sh\n", executable=True),
        PurePosixPath("old.py"): TreeFile(b""),
    }
)
TREE = PRISTINE.without([PurePosixPath("old.py")]).with_files({CODE: TreeFile("é\n".encode())})
VERDICT = Verdict(
    accepted=True,
    grade=Grade.PROVEN,
    reason="1 test passes",
    tree=TREE.digest,
    reports=(
        CheckReport(
            command="pytest -q",
            runner="pytest",
            passed=True,
            tests=(TestResult(id="tests/test_add.py::test_add", status=TestStatus.PASSED),),
            canaries_planted=3,
            canaries_caught=3,
        ),
    ),
    findings=(
        Finding(kind=TamperKind.RUNNER_CONFIG, severity="note", explanation="left out", path=CODE),
    ),
)


def a_proof(**fields: Any) -> Proof:
    return Proof(
        **{
            "run": "brisk-otter-4f2a",
            "spec": RunSpec(goal="add “two” numbers", checks=("pytest -q",)),
            "checks": ("pytest -q",),
            "protected": (PurePosixPath("tests"),),
            "pristine": PRISTINE,
            "tree": TREE,
            "verdict": VERDICT,
            "environment": describe_environment(backend="native", isolation="isolated"),
            "model": "scripted:x",
            "usage": Usage(input_tokens=100, output_tokens=20, calls=1, cost_usd=0.1),
            **fields,
        }
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    certificate = build_certificate(a_proof(), signing_key(tmp_path / "state"))
    path = tmp_path / "work" / ".assay" / "brisk-otter-4f2a.certificate.json"
    write_certificate(path, certificate)
    return path


def test_a_certificate_says_what_was_accepted_and_how(tmp_path: Path) -> None:
    def noon() -> datetime:
        return datetime(2026, 11, 16, 12, tzinfo=UTC)

    made = build_certificate(a_proof(), signing_key(tmp_path), now=noon)

    assert (made.grade, made.checks, made.issued_at) == (
        Grade.PROVEN,
        ("pytest -q",),
        "2026-11-16T12:00:00+00:00",
    )
    assert made.protected == (TESTS,)
    assert [(str(change.path), change.kind) for change in made.changes] == [
        ("add.py", "added"),
        ("old.py", "deleted"),
    ]
    assert {path: file.executable for path, file in made.files.items()} == {
        "add.py": False,
        "bin/tool": True,
        "tests/test_add.py": False,
    }
    assert [(test.id, test.status) for test in made.tests] == [
        ("tests/test_add.py::test_add", TestStatus.PASSED)
    ]
    assert (made.canaries.planted, made.canaries.caught) == (3, 3)
    assert (made.tree, made.pristine) == (TREE.digest, PRISTINE.digest)
    assert made.environment.packages["pytest"] == pytest.__version__
    assert made.key == public_key(tmp_path)


def test_a_certificate_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = build_certificate(a_proof(), signing_key(tmp_path))
    path = tmp_path / "certificate.json"

    write_certificate(path, made)

    assert read_certificate(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["certificate.json"]


def test_a_certificate_holds_names_that_are_not_text(tmp_path: Path) -> None:
    tree = TREE.with_files({PurePosixPath("\udcff"): TreeFile(b"")})
    verdict = Verdict(accepted=True, grade=Grade.RAN, reason="\ud800", tree=tree.digest)
    made = build_certificate(a_proof(tree=tree, verdict=verdict), signing_key(tmp_path))

    write_certificate(tmp_path / "c.json", made)

    assert read_certificate(tmp_path / "c.json") == made
    assert not compare_files(made, tree).any


def test_the_signature_can_be_checked_by_hand(written: Path) -> None:
    fields = json.loads(written.read_text())
    signature = bytes.fromhex(fields.pop("signature"))
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(fields["key"]))

    key.verify(signature, content.encode())


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict) and value:
        return [leaf for name, one in value.items() for leaf in leaves(one, (*path, name))]
    if isinstance(value, list) and value:
        return [leaf for place, one in enumerate(value) for leaf in leaves(one, (*path, place))]
    return [path]


def test_whatever_is_changed_in_a_certificate_shows(written: Path) -> None:
    fields = json.loads(written.read_text())
    every_leaf = [leaf for leaf in leaves(fields) if leaf != ("format",)]
    assert len(every_leaf) > 30
    for leaf in every_leaf:
        changed = json.loads(written.read_text())
        place = changed
        for step in leaf[:-1]:
            place = place[step]
        place[leaf[-1]] = "0" * 64 if place[leaf[-1]] != "0" * 64 else 1
        written.with_name("changed.json").write_text(json.dumps(changed))

        with pytest.raises(JournalError, match="was changed after it was signed"):
            read_certificate(written.with_name("changed.json"))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("findings"),
        lambda fields: fields.pop("signature"),
        lambda fields: fields.update(more="trust me"),
        lambda fields: fields["files"].pop("add.py"),
        lambda fields: fields.update(key="00" * 32),
        lambda fields: fields.update(key="not hexadecimal"),
        lambda fields: fields.update(signature=""),
        lambda fields: fields.update(signature=["00"]),
    ],
)
def test_what_is_added_or_taken_away_shows(
    written: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    fields = json.loads(written.read_text())
    change(fields)
    written.write_text(json.dumps(fields))

    with pytest.raises(JournalError, match="was changed after it was signed"):
        read_certificate(written)


def test_how_a_certificate_is_spaced_does_not_matter(written: Path) -> None:
    before = read_certificate(written)
    fields = json.loads(written.read_text())

    written.write_text(json.dumps(dict(reversed(fields.items()))))

    assert read_certificate(written) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "not a certificate of Assay"),
        ("{}", "not a certificate of Assay"),
        ('{"format": 1}', "not a certificate of Assay"),
        ('{"format": "assay-certificate/2"}', "has the format 'assay-certificate/2'"),
        ('{"format": "assay-certificate/1", "format": "x"}', "it is not JSON"),
        ('{"format": "assay-certificate/1", "wall_s": NaN}', "it is not JSON"),
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.json").write_text(text)

    with pytest.raises(UsageError, match=said) as refusal:
        read_certificate(tmp_path / "c.json")

    assert refusal.value.exit_code is ExitCode.USAGE


def test_a_certificate_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_certificate(tmp_path / "c.json")


def test_only_what_was_accepted_gets_a_certificate(tmp_path: Path) -> None:
    rejected = Verdict(accepted=False, grade=None, reason="no", tree=TREE.digest)

    with pytest.raises(UsageError, match="only what was accepted"):
        build_certificate(a_proof(verdict=rejected), signing_key(tmp_path))


def test_a_verdict_about_other_files_gives_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="about other files"):
        build_certificate(a_proof(tree=PRISTINE), signing_key(tmp_path))


def test_files_are_compared_by_content_and_mode(written: Path) -> None:
    certificate = read_certificate(written)
    tree = TREE.without([TESTS]).with_files(
        {
            CODE: TreeFile(b"other"),
            TOOL: TreeFile(b"#!/bin/sh\n"),
            PurePosixPath("x"): TreeFile(b""),
        }
    )

    found = compare_files(certificate, tree)

    assert (found.changed, found.missing) == ((CODE, TOOL), (TESTS,))
    assert found.extra == (PurePosixPath("x"),)
    assert found.any


def test_more_files_than_were_certified_change_nothing(written: Path) -> None:
    certificate: Certificate = read_certificate(written)

    assert not compare_files(certificate, TREE).any
    assert not compare_files(certificate, TREE.with_files({PurePosixPath("x"): TreeFile(b"")})).any


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    made = build_certificate(a_proof(), signing_key(tmp_path / "state"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".assay").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match="is a link"):
        write_certificate(tmp_path / ".assay" / "c.json", made)

    assert list((tmp_path / "elsewhere").iterdir()) == []


NAMES = st.text(max_size=5)
JSON = st.none() | st.integers() | NAMES | st.lists(NAMES) | st.dictionaries(NAMES, NAMES)


@given(fields=st.dictionaries(NAMES, JSON))
def test_what_is_signed_does_not_depend_on_the_order_of_names(fields: dict[str, Any]) -> None:
    assert canonical(dict(reversed(fields.items()))) == canonical(fields)
    assert canonical({**fields, "signature": "x"}) == canonical(
        {name: value for name, value in fields.items() if name != "signature"}
    )
