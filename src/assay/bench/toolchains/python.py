"""Python: pytest, which comes with Assay itself."""

from importlib.util import find_spec
from typing import Final

from assay.bench.exercise import Exercise, Language
from assay.bench.toolchains.toolchain import Commands, Kit, Missing, OnNotice, Place, in_folder
from assay.contracts.distribution import install_command
from assay.contracts.errors import MissingExtraError
from assay.contracts.ports import SandboxBackend

_PYTEST: Final = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest -p no:cacheprovider"
"""Plain pytest: plugins of this installation would take time, and may reorder tests."""


class PythonToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "python"
    versions: tuple[tuple[str, ...], ...] = (("python3", "--version"), ("pytest", "--version"))

    def find(self, place: Place) -> Kit:
        missing = (
            () if find_spec("pytest") else (Missing(what="pytest", fix=install_command("agent")),)
        )
        return Kit(language=self.language, folder=place.of(self.language), missing=missing)

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        del on_notice
        if not self.find(place).ready:
            raise MissingExtraError("running Python's tests", extra="agent")

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del exercise, kit
        return ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        del kit
        return Commands(bare=_PYTEST, check=in_folder(exercise.folder, _PYTEST))

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        del exercise, kit, backend
