"""Every language of the polyglot benchmark, in a sandbox without network: right and wrong."""

from pathlib import Path

import pytest

from assay.bench.bench_run import BenchCallbacks, BenchConfig, validate_suite
from assay.bench.suites import Selection
from assay.bench.toolchains.all import TOOLCHAINS
from assay.settings.load import SandboxSettings, Settings, load_settings
from tests.support.exercises import POLYGLOT, polyglot_clone
from tests.support.requirements import require

pytestmark = pytest.mark.backends

CATCH = Path("/usr/include/catch2/catch.hpp")


def settings_for(folder: Path) -> Settings:
    """Use the toolchains of this machine, and keep everything else apart."""
    sandbox = SandboxSettings(preload=(), pool_size=0, runtime_dir=folder / "runtime")
    return load_settings().model_copy(update={"sandbox": sandbox, "state_dir": folder / "state"})


def catch_header() -> str:
    return CATCH.read_text() if CATCH.exists() else ""


@pytest.mark.parametrize("name", sorted(POLYGLOT))
async def test_the_reference_is_accepted_and_the_stub_rejected(name: str, tmp_path: Path) -> None:
    language = name.partition("/")[0]
    settings = settings_for(tmp_path)
    installation = TOOLCHAINS[language].find(settings)
    catch = catch_header() if language == "cpp" else ""
    missing = ", ".join(one.what for one in installation.missing) or "catch.hpp"
    there = installation.ready and (language != "cpp" or bool(catch))
    require(f"bench-{language}", available=there, why=f"{missing} is missing")
    clone = polyglot_clone(tmp_path / "clone", catch=catch)
    config = BenchConfig(suite="polyglot", dataset=clone, selection=Selection(names=(name,)))
    (answer,), not_run = await validate_suite(config, settings, BenchCallbacks())
    assert not_run == {}
    assert answer.oracle_accepted, answer.reason
    assert answer.stub_rejected
    assert answer.provable
    assert answer.tests >= 1
