"""How a new interpreter comes to one module of this folder, without the package around it.

The package's own `__init__` is for users: it loads what they need, and none of it belongs where
programs will run. So the packages above this folder are names only.
"""

from pathlib import Path
from typing import Final

SOURCE: Final = str(Path(__file__).resolve().parents[4])
"""The folder that holds the package."""
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
    """Return arguments of an interpreter that make it call `main` with those that follow them.

    `source` is the folder that holds the package, as that interpreter sees it.
    """
    return ("-c", _BOOT.format(module=module), source)
