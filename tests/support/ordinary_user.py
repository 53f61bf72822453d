"""An ordinary user, with a home and a Python that has Assay, for what must hold without root."""

import os
import pwd
import shutil
import subprocess  # noqa: TID251 - the point is to start programs as somebody else
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.requirements import require
from tests.support.sources import PACKAGE

NAMES = ("assay-ci", "nobody")
"""The gate makes the first; every machine has the second, whose home does not exist."""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_ENTER = 0o001
_READ_AND_ENTER = 0o005


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryUser:
    """The user who runs the tests, unless that is root."""

    uid: int
    gid: int
    home: Path
    """A folder of the tests: an account can have no home, or one that cannot be written to."""
    python: Path
    """An interpreter this user can run, with Assay and what it needs."""

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, with an environment as after a login."""
        own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}
        someone_else = os.geteuid() != self.uid
        return subprocess.run(
            argv,
            cwd="/",
            env={**own, **(env or {})},
            user=self.uid if someone_else else None,
            group=self.gid if someone_else else None,
            extra_groups=[] if someone_else else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )


@contextmanager
def an_ordinary_user() -> Generator[OrdinaryUser]:
    """Give an ordinary user a home and a Python, made once and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="assay-user-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir(mode=0o700)
        if os.geteuid() != 0:
            uid, gid, python = os.geteuid(), os.getegid(), Path(sys.executable)
        else:
            account, base = _account_and_python()
            uid, gid = account.pw_uid, account.pw_gid
            python = _make_environment(base, folder / "venv")
            os.chown(home, uid, gid)
        yield OrdinaryUser(uid=uid, gid=gid, home=home, python=python)


def _account_and_python() -> tuple[pwd.struct_passwd, Path]:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = next((known[name] for name in NAMES if name in known), None)
    base = _python_for_everyone()
    why = f"there is no user {' or '.join(NAMES)}, or no {_VERSION} that everyone may run"
    require("user", available=account is not None and base is not None, why=why)
    assert account is not None
    assert base is not None
    return account, base


def _python_for_everyone() -> Path | None:
    """An interpreter of our own version: compiled packages fit no other."""
    candidates = (Path(sys.base_prefix) / "bin" / _VERSION, Path("/usr/bin") / _VERSION)
    return next((path for path in candidates if path.exists() and _open_to_all(path)), None)


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return bool(real.stat().st_mode & _READ_AND_ENTER == _READ_AND_ENTER) and all(
        parent.stat().st_mode & _ENTER for parent in real.parents
    )


def _make_environment(base: Path, folder: Path) -> Path:
    """A virtual environment with our own packages, linked to if the user may read them."""
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    target = folder / "lib" / _VERSION / "site-packages"
    ours = Path(sysconfig.get_path("purelib"))
    target.rmdir()
    if _open_to_all(ours) and _open_to_all(PACKAGE):
        target.symlink_to(ours)
    else:
        shutil.copytree(ours, target)
        shutil.copytree(PACKAGE, target / "assay")
    return folder / "bin" / "python"
