"""The generated messages, and the protobuf versions that load them."""

import re
import tomllib

from packaging.requirements import Requirement

from assay.sandbox.docker.image import PACKAGES
from tests.support.sources import PACKAGE, ROOT

_GENERATED = re.compile(r"^# Protobuf Python Version: (\S+)$", re.MULTILINE)


def test_every_accepted_protobuf_loads_the_generated_modules() -> None:
    """A module rejects a protobuf that is older than its compiler's."""
    module = PACKAGE / "sandbox" / "rpc" / "messages" / "executor_pb2.py"
    found = _GENERATED.search(module.read_text())
    assert found
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()

    accepted = {
        str(requirement.specifier)
        for text in (*(text for extra in extras for text in extra), *PACKAGES)
        if (requirement := Requirement(text)).name == "protobuf"
    }

    assert accepted == {f">={found[1]}"}


def test_the_build_uses_the_compiler_that_the_tests_use() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())

    compilers = {
        text
        for text in (*content["build-system"]["requires"], *content["dependency-groups"]["dev"])
        if text.startswith("grpcio-tools")
    }

    assert len(compilers) == 1
