"""Backends of other distributions: found by their entry points, and named when they are broken."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.contracts.errors import IsolationUnavailableError, UsageError
from assay.contracts.execution import Command, Isolation, Limits
from assay.sandbox.factory import open_backend
from assay.settings.load import SandboxSettings, load_settings
from assay.settings.types import BACKENDS, backend_names
from tests.support.distributions import install_distribution

CODE = """
from contextlib import asynccontextmanager
from assay.contracts.execution import Isolation
from tests.doubles.fake_sandbox import FakeBackend, answer_with

@asynccontextmanager
async def open_cloud(settings):
    region = settings.options["cloud"]["region"]
    yield FakeBackend(answer=lambda program, sandbox: answer_with(region))

@asynccontextmanager
async def open_nothing(settings):
    yield object()

NOT_ONE = "a text"
"""

Install = Callable[..., None]


@pytest.fixture(name="install")
def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a distribution importable that declares backends, by name and object."""

    def install(distribution: str = "acme-cloud", **declared: str) -> None:
        install_distribution(
            tmp_path / distribution,
            monkeypatch,
            name=distribution,
            modules={"acme_cloud": CODE},
            group="assay.backends",
            entry_points=declared,
        )

    return install


def sandbox_settings(**given: object) -> SandboxSettings:
    options = {"cloud": {"region": "north"}}
    return load_settings({"sandbox": {"backend": "cloud", "options": options, **given}}).sandbox


async def test_a_backend_of_another_distribution_runs_programs(install: Install) -> None:
    install(cloud="acme_cloud:open_cloud")

    assert backend_names() == (*BACKENDS, "cloud")
    settings = sandbox_settings(isolation="none")
    async with open_backend(settings) as backend, backend.open_sandbox(Limits()) as sandbox:
        result = await sandbox.run(Command(argv=("true",)))

    assert result.stdout == "north"


async def test_a_backend_that_isolates_too_little_is_refused(install: Install) -> None:
    install(cloud="acme_cloud:open_cloud")

    with pytest.raises(IsolationUnavailableError, match="'cloud' isolates as 'none'"):
        async with open_backend(sandbox_settings()):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("acme_cloud:NOT_ONE", "is a str"),
        ("acme_cloud:missing", "AttributeError"),
        ("no_such_module:x", "ModuleNotFoundError"),
        ("acme_cloud:open_nothing", "an object of type object"),
    ],
)
async def test_a_broken_backend_names_its_distribution(
    install: Install, value: str, problem: str
) -> None:
    install(cloud=value)

    with pytest.raises(UsageError, match=problem) as caught:
        async with open_backend(sandbox_settings()):
            pytest.fail("it was opened")

    assert "acme-cloud 1.2" in str(caught.value)


def test_a_name_of_assay_cannot_be_taken(install: Install) -> None:
    install(native="acme_cloud:open_cloud")

    with pytest.raises(UsageError, match=r"acme-cloud 1\.2 .* has the name of a part of Assay"):
        backend_names()


def test_an_unknown_backend_names_the_known_ones(install: Install) -> None:
    install(other="acme_cloud:open_cloud")

    with pytest.raises(UsageError, match="unknown backend 'cloud'") as caught:
        sandbox_settings(isolation=Isolation.NONE)

    assert caught.value.hint.endswith("remote, other")
