"""Ended runs as the agent stores them, without a model and without a sandbox."""

from pathlib import Path, PurePosixPath

from assay.contracts.events import RunEnded, RunStarted
from assay.contracts.goal import RunRequest, RunResult, RunSpec, Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, Grade, TestMatrix, Verdict
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.runs.delivery import CERTIFICATE
from assay.storage.certificates import (
    Proof,
    build_certificate,
    describe_environment,
    write_certificate,
)
from assay.storage.journal import DiskJournal
from assay.storage.run_store import Run, RunStore
from assay.storage.signing_keys import signing_key

SPEC = RunSpec(goal="write the answer", checks=("true",))


def a_tree(**files: str | bytes) -> Tree:
    """Return files by their names; two underscores stand for a slash."""
    return Tree(
        files={
            PurePosixPath(name.replace("__", "/")): TreeFile(
                text if isinstance(text, bytes) else text.encode()
            )
            for name, text in files.items()
        }
    )


async def store_a_run(
    state_dir: Path, workspace: Path, before: Tree, after: Tree, *, accepted: bool = True
) -> Run:
    """Store a run that ended with these files and was not delivered."""
    run = RunStore(state_dir).create(
        RunRequest(goal=SPEC.goal, workspace=workspace, checks=SPEC.checks)
    )
    verdict = Verdict(
        accepted=accepted,
        grade=Grade.CHECKED if accepted else None,
        reason="true passes",
        tree=after.digest,
        reports=(CheckReport(command="true", runner="command", passed=accepted),),
    )
    outcome = RunResult(
        run=run.id,
        status=Status.ACCEPTED if accepted else Status.NOT_ACCEPTED,
        grade=verdict.grade,
        reason=verdict.reason,
        attempts=1,
        verdict=verdict,
        test_matrix=TestMatrix(),
        findings=(),
        changes=changes_between(before, after),
        tree=after.digest,
        usage=Usage(),
        wall_s=1.0,
    )
    async with DiskJournal(run.folder) as journal:
        for tree in (before, after):
            await journal.store_tree(tree)
        journal.emit(
            RunStarted(
                run=run.id,
                spec=SPEC,
                model="scripted:x",
                backend="native",
                isolation="isolated",
                workspace=str(workspace),
                tree=before.digest,
            )
        )
        journal.emit(RunEnded(outcome=outcome))
    if accepted:
        proof = Proof(
            run=run.id,
            spec=SPEC,
            checks=SPEC.checks,
            protected=(),
            pristine=before,
            tree=after,
            verdict=verdict,
            environment=describe_environment(backend="native", isolation="isolated"),
            model="scripted:x",
            usage=Usage(),
        )
        certificate = build_certificate(proof, signing_key(state_dir))
        write_certificate(run.folder / CERTIFICATE, certificate)
    return run
