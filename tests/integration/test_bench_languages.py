"""Every language of the polyglot benchmark, in a sandbox without network: right and wrong."""

from pathlib import Path

import pytest

from assay.bench.bench_run import BenchCallbacks, BenchOrder, ask_gate
from assay.bench.suites import Selection
from assay.bench.toolchains.all import TOOLCHAINS, place_of
from assay.bench.validate import GateResult
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
    kit = TOOLCHAINS[language].find(place_of(settings))
    catch = catch_header() if language == "cpp" else ""
    missing = ", ".join(one.what for one in kit.missing) or "catch.hpp"
    there = kit.ready and (language != "cpp" or bool(catch))
    require(f"bench-{language}", available=there, why=f"{missing} is missing")
    clone = polyglot_clone(tmp_path / "clone", catch=catch)
    order = BenchOrder(suite="polyglot", dataset=clone, selection=Selection(names=(name,)))
    answers: list[GateResult] = []
    await ask_gate(order, settings, BenchCallbacks(), answers, {})
    (answer,) = answers
    assert answer.oracle_accepted, answer.reason
    assert answer.stub_rejected
    assert answer.provable
    assert answer.tests >= 1
