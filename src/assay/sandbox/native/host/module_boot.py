"""Starts one module of this package in a new interpreter, without the packages around it.

The `__init__` of `assay` loads what users need, and none of that belongs in a jail. So the parent
packages are empty modules.
"""

from pathlib import Path
from typing import Final

SOURCE: Final = str(Path(__file__).resolve().parents[4])
"""The folder that holds the package `assay`."""
_BOOT: Final = """
import sys, types
source = sys.argv.pop(1)
for name in ("assay", "assay.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [source + "/" + name.replace(".", "/")]
from assay.sandbox.native.{module} import main
main(*sys.argv[1:])
"""


def boot(module: str, source: str = SOURCE) -> tuple[str, ...]:
    """Return the interpreter arguments that call `main` of a module with the arguments after them.

    `source` is the folder that holds the package, as that interpreter sees it.
    """
    return ("-c", _BOOT.format(module=module), source)
