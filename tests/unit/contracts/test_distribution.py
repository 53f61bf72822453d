import re
import tomllib
from pathlib import Path

from assay.contracts import distribution
from assay.contracts.distribution import how_to_install, missing_extras
from assay.contracts.errors import MissingExtraError
from tests.support.sources import ROOT


def test_extras_that_are_installed_are_not_missing() -> None:
    assert missing_extras(["agent", "local", "docker", "openai"]) == ()


def test_every_extra_that_can_be_missing_is_one_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = (ROOT / "src/assay/contracts/distribution.py").read_text()
    table = source[source.index("_MODULES") : source.index("\n}\n")]

    extras = re.findall(r'^    "(\w+)": ', table, re.MULTILINE)

    # What a sandbox finds imported, and a store that is asked for by name, report themselves.
    assert {*extras, "all", "chroma", "data"} == set(project["optional-dependencies"])
    assert project["name"] == distribution.DISTRIBUTION


def test_several_extras_are_named_in_one_command() -> None:
    error = MissingExtraError("a conversation", extra="chat,local")

    assert str(error) == "a conversation needs extras that are not installed: chat, local"
    assert error.hint == "run `pip install 'assay-agent[chat,local]'`"


def test_where_nothing_can_be_installed_another_environment_is_named(tmp_path: Path) -> None:
    # A folder that is not there cannot be written, not even by root.
    fixed = how_to_install("docker", code=tmp_path / "none" / "a.py")

    assert how_to_install("docker", code=tmp_path / "a.py") == (
        "run `pip install 'assay-agent[docker]'`"
    )
    assert "pip install" not in fixed
    assert "an image or an environment that has 'assay-agent[docker]'" in fixed
