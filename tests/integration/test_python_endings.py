"""A program ends in the sandbox as it would under plain Python: the same code, the same words."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.contracts.execution import Limits
from tests.support.native import open_own, python

SOURCES = {
    "falls off the end": "print('done')",
    "exits with a number": "raise SystemExit(3)",
    "exits with a negative number": "import sys; sys.exit(-1)",
    "exits with a number too large": "raise SystemExit(256 + 7)",
    "exits with words": "import sys; sys.exit('words')",
    "exits with nothing": "raise SystemExit",
    "is interrupted": "raise KeyboardInterrupt",
    "exits with a tuple": "raise SystemExit((1, 2))",
    "leaves at once": "import os; print('x'); os._exit(7)",
    "fails": "def f():\n    return 1 / 0\nf()\n",
    "fails while failing": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']\n",
    "fails with a group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "does not parse": "print('a')\nif x\n",
    "recurses": "def f():\n    f()\nf()\n",
    "has a hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0\n",
    "has a hook that fails": "import sys\nsys.excepthook = lambda *a: {}['x']\n1 / 0\n",
    "has a hook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(5)\n1 / 0\n",
    "closes its output": "import sys; print('x'); sys.stdout.close()",
    "has no output": "import sys; sys.stdout = None; print('x')",
    "replaces its output": "import io, sys; sys.stdout = io.StringIO(); print('x')",
    "says farewell": "import atexit; atexit.register(print, 'farewell'); 1 / 0",
    "fails at farewell": "import atexit; atexit.register(lambda: 1 / 0)",
    "waits for threads": (
        "import threading\nthreading.Timer(0.05, print, ('late',)).start()\nprint('early')\n"
    ),
    "fails in a thread": "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    "ends by a signal": "import os; os.kill(os.getpid(), 15)",
    "leaves a daemon": (
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('done')\n"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What can be compared: tracebacks differ in paths and depths, never in their last line."""

    code: int
    stdout: str
    last_words: str
    frames_of_ours: bool


def last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""


@pytest.fixture(scope="module", params=[0, 2], ids=["made for it", "from the pool"])
async def endings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ending]:
    """How each program ended in a sandbox."""
    runtime_dir = tmp_path_factory.mktemp("endings") / "runtime"
    found: dict[str, Ending] = {}
    async with (
        open_own(runtime_dir, pool_size=request.param) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):
        for name, source in SOURCES.items():
            result = await sandbox.run(python(source))
            code = -(result.signal or 0) if result.exit_code is None else result.exit_code
            found[name] = Ending(
                code=code,
                stdout=result.stdout,
                last_words=last_line(result.stderr),
                frames_of_ours="assay/sandbox" in result.stderr,
            )
    return found


def under_plain_python(source: str, folder: Path) -> Ending:
    (folder / "main.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env={"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ending(
        code=done.returncode,
        stdout=done.stdout,
        last_words=last_line(done.stderr),
        frames_of_ours=False,
    )


@pytest.mark.parametrize("name", SOURCES)
async def test_a_program_ends_as_under_plain_python(
    endings: dict[str, Ending], tmp_path: Path, name: str
) -> None:
    assert endings[name] == under_plain_python(SOURCES[name], tmp_path)
