"""A backend behind an executor with mutual TLS keeps every promise that it keeps by itself."""

from pathlib import Path

import pytest

from assay.testing.selftest import CheckResult, run_suites
from tests.support.backends import open_native
from tests.support.executors import make_certificates, open_client, open_served

pytestmark = pytest.mark.backends


async def test_a_remote_backend_keeps_every_promise(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    broken: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        if result.status == "failed":
            broken.append(result)

    async with (
        open_native("namespaces") as native,
        open_served(native, tmp_path, **certificates.server()) as executor,
        open_client(executor.port, **certificates.client("alice")) as remote,
    ):
        report = await run_suites(remote, suites=["conformance"], on_result=note, checks_at_once=6)

    assert broken == []
    assert report.count("passed") > 100
