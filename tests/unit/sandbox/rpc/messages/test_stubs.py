"""The generated code is what the compiler makes of the definitions."""

from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc

from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.methods import METHODS
from tests.support.sources import PACKAGE

WIRE = PACKAGE / "sandbox" / "rpc" / "messages"
STUBS = sorted(path.name for path in WIRE.glob("*_pb2*") if path.is_file())


def generate(into: Path) -> None:
    sources = [str(path) for path in sorted(WIRE.glob("*.proto"))]
    known = Path(grpc_tools.__file__).parent / "_proto"
    flags = [f"-I{PACKAGE.parent}", f"-I{known}"]
    both = [f"--python_out={into}", f"--pyi_out={into}"]
    assert protoc.main(["protoc", *flags, *both, *sources]) == 0
    service = str(WIRE / "executor.proto")
    assert protoc.main(["protoc", *flags, f"--grpc_python_out={into}", service]) == 0


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_is_what_the_compiler_makes(name: str, tmp_path: Path) -> None:
    generate(tmp_path)

    made = (tmp_path / "assay" / "sandbox" / "rpc" / "messages" / name).read_text()
    assert made == (WIRE / name).read_text(), "run `make stubs`"


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
