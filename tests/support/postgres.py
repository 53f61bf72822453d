"""A real PostgreSQL server of our own: made for a module, thrown away after it."""

import os
import shutil
import subprocess  # noqa: TID251 - the server is a program of this machine
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwnam

_USER = "nobody"
"""It refuses to run as root."""


def find_postgres() -> Path | None:
    """Return the folder of its programs, where Debian puts them or where the path says."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


@contextmanager
def postgres(programs: Path) -> Generator[str]:
    """Serve on a socket in a folder of its own; yields the URL."""
    home = Path(tempfile.mkdtemp(prefix="assay-postgres-"))
    as_root = os.getuid() == 0
    if as_root:
        os.chown(home, getpwnam(_USER).pw_uid, getpwnam(_USER).pw_gid)
    data = home / "data"

    def run(program: str, *words: str) -> None:
        subprocess.run(
            [str(programs / program), *words],
            user=_USER if as_root else None,
            group=getpwnam(_USER).pw_gid if as_root else None,
            extra_groups=[] if as_root else None,
            cwd=home,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=100,
            check=True,
        )

    # Nothing of it has to outlive the tests, so that no disk is waited for.
    quick = "-c fsync=off -c listen_addresses='' -c unix_socket_permissions=0777"
    try:
        run("initdb", "-D", str(data), "-U", "assay", "-A", "trust", "--no-sync", "-E", "UTF8")
        log = str(home / "log")
        run("pg_ctl", "-D", str(data), "-w", "-l", log, "-o", f"{quick} -k {home}", "start")
        try:
            yield f"postgresql://assay@/postgres?host={home}"
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
