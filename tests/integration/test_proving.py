"""A proof that is run again repeats what an acceptance needs, whatever its certificate claims."""

from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.goal import RunSpec
from assay.contracts.messages import Usage
from assay.contracts.verdict import Grade, Verdict
from assay.contracts.workspace import Tree, TreeFile
from assay.runs.reverify import reverify
from assay.storage.certificates import Certificate, Proof, build_certificate, describe_environment
from assay.storage.signing_keys import signing_key
from tests.support.undertakings import settings_in

CHECK = "pytest -q"
TESTS = PurePosixPath("tests/test_it.py")
# A package that the interpreter of the sandbox has installed as well.
OUTSIDE, INSIDE = PurePosixPath("lib/mdurl/__init__.py"), PurePosixPath("src/mdurl/__init__.py")
WRONG = TreeFile(b"def parse(text):\n    return None\n")
BEFORE = Tree(
    files={
        TESTS: TreeFile(b"from mdurl import parse\n\n\ndef test_it():\n    assert parse('x')\n"),
        PurePosixPath("notes.txt"): TreeFile(b"notes\n"),
    }
)


def certify(before: Tree, after: Tree, folder: Path) -> Certificate:
    """Return a certificate as a verifier that looks at results alone would give it."""
    proof = Proof(
        run="brisk-otter-4f2a",
        spec=RunSpec(goal="Make it right", checks=(CHECK,)),
        checks=(CHECK,),
        protected=(TESTS,),
        pristine=before,
        tree=after,
        verdict=Verdict(accepted=True, grade=Grade.PROVEN, reason="all passed", tree=after.digest),
        environment=describe_environment(backend="native", isolation="isolated"),
        model="scripted:x",
        usage=Usage(),
    )
    return build_certificate(proof, signing_key(folder / "keys"))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            BEFORE.with_files({OUTSIDE: WRONG}),
            BEFORE.with_files({OUTSIDE: TreeFile(b"raise SystemExit\n")}),
            "the tests do not run the changed files; they import `mdurl` from /",
        ),
        (
            BEFORE.with_files({INSIDE: WRONG}),
            BEFORE,
            "the tests do not run the changed files; they import `mdurl` from /",
        ),
        (BEFORE, BEFORE, "no file was changed"),
    ],
)
async def test_a_certificate_for_a_change_that_no_test_runs_does_not_hold(
    tmp_path: Path, before: Tree, after: Tree, reason: str
) -> None:
    certificate = certify(before, after, tmp_path)

    proof = await reverify(certificate, after, settings_in(tmp_path))

    assert not proof.holds
    assert proof.trouble.startswith(reason)


async def test_what_only_the_state_folder_can_tell_is_said_to_be_missing(tmp_path: Path) -> None:
    before = BEFORE.with_files({INSIDE: WRONG})
    after = before.with_files({INSIDE: TreeFile(b"def parse(text):\n    return text\n")})

    proof = await reverify(certify(before, after, tmp_path), after, settings_in(tmp_path))

    assert proof.holds, proof.trouble
    assert "checks fail on the untouched files" in proof.not_repeated
