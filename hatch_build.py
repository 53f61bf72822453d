"""Build hook: generates the protobuf modules, which are not in the repository."""

import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src")
MESSAGES = SOURCE / "assay" / "sandbox" / "rpc" / "messages"


class MessagesBuildHook(BuildHookInterface):
    """Generates `*_pb2.py` and `*_pb2.pyi` next to each `.proto` file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run the compiler before the files of a wheel or an editable install are collected."""
        del version, build_data
        root = Path(self.root)
        definitions = [str(path) for path in sorted((root / MESSAGES).glob("*.proto"))]
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        with tempfile.TemporaryDirectory() as folder:
            includes = (f"-I{root / SOURCE}", f"-I{well_known}")
            outputs = (f"--python_out={folder}", f"--pyi_out={folder}")
            if protoc.main(["protoc", *includes, *outputs, *definitions]) != 0:
                raise RuntimeError("the compiler rejects the messages of the sandbox RPC service")
            for made in Path(folder).rglob("*_pb2*"):
                self._put(root / MESSAGES / made.name, made.read_bytes())

    def _put(self, target: Path, content: bytes) -> None:
        """Write a module as a whole, because other processes may be importing it."""
        if not target.exists() or target.read_bytes() != content:
            draft = target.with_suffix(".tmp")
            draft.write_bytes(content)
            draft.replace(target)
