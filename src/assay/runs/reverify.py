"""Run the checks of a certificate again, on the files that it certifies."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from anyio import to_thread

from assay.contracts.errors import AssayError, UsageError
from assay.contracts.verdict import Grade, Verdict
from assay.contracts.workspace import Tree
from assay.runs.environment import (
    AUTO,
    install_environment,
    mounted_again,
    stored_environment,
)
from assay.runs.request import limits_of
from assay.settings.load import Settings
from assay.storage.blob_store import BlobStore
from assay.storage.certificates import Certificate, compare_files
from assay.storage.run_store import RunStore
from assay.verify.report_checks import BAD
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from assay.wiring import open_backend

_NOT_REPEATED: Final = (
    "that the checks fail on the untouched files, which only the state folder of the run has"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverifyResult:
    """The result of a repeated verification."""

    verdict: Verdict
    failed: tuple[str, ...]
    """Tests that passed for the certificate and did not pass this time."""
    trouble: str
    """Why the certificate is not confirmed, in one line; empty if it is."""
    not_repeated: str = ""
    """Claims of the certificate that this machine could not check again; empty: none."""

    @property
    def holds(self) -> bool:
        return not self.trouble


async def reverify(
    certificate: Certificate, tree: Tree, settings: Settings, *, env: str = AUTO
) -> ReverifyResult:
    """Verify the certified files of a tree again, in fresh sandboxes.

    `env` names the virtual environment again, if the run mounted one.

    Raises:
        UsageError: If a certified file is missing or changed.
        PackageError: If a required package is not available.
        IsolationUnavailableError: If this machine cannot isolate as the settings require.
        SandboxUnavailableError: If no sandbox can be opened.
    """
    if compare_files(certificate, tree).any:
        raise UsageError("these are not the files that were certified")
    # Other files in the folder took no part in the verification.
    paths = map(PurePosixPath, certificate.files)
    certified = Tree(files={path: tree.files[path] for path in paths}, origin=tree.origin)
    before = await to_thread.run_sync(_pristine, certificate, settings.state_dir)
    tests = {path: certified.files[path] for path in certificate.protected}
    case = VerificationSpec(
        # Without the original files, the certificate's list of changed files is used.
        pristine=certified if before is None else before.with_files(tests),
        checks=certificate.checks,
        protected=certificate.protected,
        most=certificate.grade,
        known_failures=tuple(test.id for test in certificate.tests if test.status in BAD),
        check_timeout_s=certificate.check_timeout_s,
        changed=_changed(certificate) if before is None else None,
    )
    given, hosts = certificate.environment.given, certificate.environment.hosts
    sandbox = settings.sandbox.model_copy(update={"hosts": hosts})
    if mounted := certificate.environment.mounted:
        sandbox = mounted_again(sandbox, env, mounted)
    environment = stored_environment(sandbox, given, certificate.environment.project)
    await install_environment(environment)
    async with open_backend(environment.sandbox, project=environment.project) as backend:
        verifier = Verifier(backend, limits_of(settings.agent))
        verdict = await verifier.verify(case, certified)
    return _judged(certificate, verdict, before_is_known=before is not None)


def _pristine(certificate: Certificate, state_dir: Path) -> Tree | None:
    """Return the original files, if the run was made here and its folder still exists."""
    store = RunStore(state_dir)
    with suppress(AssayError):
        if store.find(certificate.run) == certificate.run:
            return BlobStore(store.folder / certificate.run).load(certificate.pristine)
    return None


def _changed(certificate: Certificate) -> tuple[PurePosixPath, ...]:
    tests = set(certificate.protected)
    return tuple(change.path for change in certificate.changes if change.path not in tests)


def _judged(certificate: Certificate, verdict: Verdict, *, before_is_known: bool) -> ReverifyResult:
    passed = {test.id for test in verdict.tests if test.passed}
    expected = [test.id for test in certificate.tests if test.status == "passed"]
    failed = tuple(dict.fromkeys(test for test in expected if test not in passed))
    trouble = ""
    if not verdict.accepted:
        trouble = verdict.reason
    elif failed:
        trouble = f"tests that passed were not reported as passed: {', '.join(failed[:3])}"
    elif verdict.tree != certificate.tree:
        trouble = "what was judged this time is not what was certified"
    elif before_is_known and verdict.grade and verdict.grade.rank < certificate.grade.rank:
        trouble = f"it is {verdict.grade.value} this time, not {certificate.grade.value}"
    claims_failure = certificate.grade.rank > Grade.RAN.rank
    not_repeated = "" if before_is_known or not claims_failure else _NOT_REPEATED
    return ReverifyResult(
        verdict=verdict, failed=failed, trouble=trouble, not_repeated=not_repeated
    )
