"""The generated messages: the methods that use them, and the protobuf versions that load them."""

import re
import tomllib

from packaging.requirements import Requirement

from assay.sandbox.docker.image import PACKAGES
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.methods import METHODS
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


def test_the_table_of_methods_is_that_of_the_service() -> None:
    service = executor_pb2.DESCRIPTOR.services_by_name["Executor"]

    declared = [
        (
            method.name,
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    ]
    tabled = [
        (
            method.name,
            method.request.DESCRIPTOR.full_name,
            method.response.DESCRIPTOR.full_name,
            method.streams_requests,
            method.streams_responses,
        )
        for method in METHODS
    ]
    assert tabled == declared
