"""Decides which host files a program sees: interpreter, `/usr`, toolchains, a few files of `/etc`.

Runs on the trusted side. Everything appears at a neutral path, so that a program's output does not
depend on the interpreter's location. A toolchain folder is used only if it is recognizably one
distribution and nothing else. `boot` starts one module of this package in a new interpreter,
without the packages around it, because the `__init__` of `assay` loads what users need.
"""

import os
import stat
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.sandbox.native.guest.jail_spec import (
    HOSTNAME,
    INNER_ID,
    SITE,
    WORKSPACE,
    Pairs,
    RootPlan,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One self-contained distribution with a `bin` folder."""

    name: str
    prefix: str


_MARKERS: Final[tuple[tuple[str, str, str], ...]] = (
    # name, program, a path that exists only at the root of such a distribution
    ("node", "node", "include/node/node_version.h"),
    ("go", "go", "src/runtime/runtime.go"),
    ("java", "javac", "release"),
    ("rust", "rustc", "lib/rustlib/components"),
)
_PERSONAL: Final = (".ssh", ".config", ".local", ".bashrc", ".profile", "share/keyrings")


def find_toolchains(folders: Sequence[str]) -> tuple[Toolchain, ...]:
    """Search the folders; no program is started."""
    found: list[Toolchain] = []
    for name, program, marker in _MARKERS:
        executable = _first(program, folders)
        prefix = executable and _prefix_of(executable)
        personal = prefix and any((prefix / part).exists() for part in _PERSONAL)
        if prefix and not personal and (prefix / marker).exists():
            found.append(Toolchain(name=name, prefix=str(prefix)))
    return tuple(found)


def _first(program: str, folders: Sequence[str]) -> Path | None:
    for folder in folders:
        candidate = Path(folder, program)
        # A folder on the search path may belong to another user.
        with suppress(OSError):
            if candidate.is_file():
                return candidate
    return None


def _prefix_of(executable: Path) -> Path | None:
    real = executable.resolve()
    if real.name == "rustup":
        return _rustup_toolchain(executable.parent.parent.parent / ".rustup")
    if real.is_relative_to("/usr"):
        return None
    return real.parent.parent


def _rustup_toolchain(home: Path) -> Path | None:
    try:
        settings = tomllib.loads((home / "settings.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return None
    chosen = home / "toolchains" / str(settings.get("default_toolchain", ""))
    return chosen.resolve() if chosen.is_dir() else None


HOME: Final = "/opt/assay"
PYTHON: Final = f"{HOME}/python"
VENV: Final = f"{HOME}/venv"
LIBRARY: Final = f"{HOME}/lib"
INTERPRETER: Final = f"{VENV}/bin/python3"

OWN_FOLDERS: Final = ("/tmp", "/proc", "/dev", WORKSPACE)
"""Host folders that are hidden in a sandbox, which has its own at the same path."""
_SYSTEM_FOLDERS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/tls/certs",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)
_ETC_PATTERNS: Final = ("java-*",)
_LARGEST_COPY: Final = 1 << 20
_VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The root file system of a jail, and the environment of its programs."""

    root: RootPlan
    env: dict[str, str]
    host_env: dict[str, str]
    """The environment of programs that see the host's own paths (Landlock tier)."""
    readable: tuple[str, ...]
    """Host paths that those programs may read."""


def build_layout(
    search_path: Sequence[str],
    extra_read_only: Sequence[Path] = (),
    *,
    site_packages: Path | None = None,
) -> Layout:
    """Inspect this machine and interpreter once and return plain data.

    Programs see the packages in `site_packages` instead of those of this interpreter, without its
    `.pth` files being executed.

    Raises:
        UsageError: If a path in `extra_read_only` does not exist or cannot be visible in a jail.
    """
    _check_readable(extra_read_only)
    toolchains = find_toolchains(search_path)
    etc_binds, copies = _etc_paths()
    binds = [
        ("/usr", "/usr"),
        *((folder, folder) for folder in _SYSTEM_FOLDERS if _is_real_folder(folder)),
        *etc_binds,
        *_python_binds(own=site_packages is None),
        *([(str(site_packages), SITE)] if site_packages else []),
        # Only the native sandbox's modules, without the rest of the package.
        (str(Path(__file__).resolve().parents[1]), f"{LIBRARY}/assay/sandbox/native"),
        *((tool.prefix, f"{HOME}/toolchains/{tool.name}") for tool in toolchains),
        *((str(path), str(path)) for path in extra_read_only),
    ]
    own_bin = f"{sys.prefix}/bin"
    # An interpreter recognizes a virtual environment only if it can read this file.
    own_parts = [path for path in (own_bin, f"{sys.prefix}/pyvenv.cfg") if os.path.exists(path)]
    return Layout(
        root=RootPlan(
            binds=tuple(binds), copies=copies, links=_links(), files=_files(site_packages)
        ),
        env=_environment(
            [f"{VENV}/bin", *(f"{HOME}/toolchains/{tool.name}/bin" for tool in toolchains)]
        ),
        host_env={
            **_environment([own_bin, *(f"{tool.prefix}/bin" for tool in toolchains)]),
            "GIT_CONFIG_NOSYSTEM": "1",  # git fails on a file that exists but is unreadable
        },
        readable=tuple(dict.fromkeys((*(source for source, _ in (*binds, *copies)), *own_parts))),
    )


def _check_readable(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise UsageError(
                f"setting sandbox.read_only: {str(path)!r} is not there",
                hint="name existing files or folders by their absolute paths",
            )
        for folder in OWN_FOLDERS:
            if path.is_relative_to(folder):
                raise UsageError(
                    f"setting sandbox.read_only: {str(path)!r} cannot be seen in a sandbox, "
                    f"which has a {folder} of its own",
                    hint=f"keep it outside {folder}",
                )


def _environment(first_folders: Iterable[str]) -> dict[str, str]:
    folders = [*first_folders, "/usr/local/bin", "/usr/bin", "/bin"]
    env = {
        "PATH": ":".join(folders),
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "user",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and not _in_usr(sys.base_prefix):
        env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return env


def _is_real_folder(path: str) -> bool:
    """Whether this is no link: on systems without a merged `/usr`."""
    return os.path.isdir(path) and not os.path.islink(path)


def _etc_paths() -> tuple[Pairs, Pairs]:
    """Return what is mounted, and the small files that are copied."""
    etc = Path("/etc")
    named = [etc / name for name in _ETC]
    matched = [path for pattern in _ETC_PATTERNS for path in sorted(etc.glob(pattern))]
    binds: list[tuple[str, str]] = []
    copies: list[tuple[str, str]] = []
    for path in (*named, *matched):
        if path.exists():
            status = path.stat()
            # A copy is readable for all programs, so a file that is not for all is mounted.
            copied = (
                stat.S_ISREG(status.st_mode)
                and bool(status.st_mode & stat.S_IROTH)
                and status.st_size <= _LARGEST_COPY
            )
            (copies if copied else binds).append((str(path.resolve()), str(path)))
    return tuple(binds), tuple(copies)


def _in_usr(path: str) -> bool:
    return Path(path).resolve().is_relative_to("/usr")


def _python_binds(*, own: bool) -> Pairs:
    base = Path(sys.base_prefix).resolve()
    sites = _own_site_packages() if own else []
    binds = [(str(path), f"{VENV}/lib/{_VERSION}/site-packages") for path in sites]
    if _in_usr(str(base)):
        return tuple(binds)
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    binds.append((str(executable), f"{PYTHON}/bin/{_VERSION}"))
    if (base / "conda-meta").is_dir():
        parts = [base / "lib", base / "include"]
    else:
        shared = sorted((base / "lib").glob("libpython3*.so*"))
        named = (base / "lib" / _VERSION, base / "include" / _VERSION, *shared)
        parts = [path for path in named if path.exists()]
    # A Landlock rule needs a real path, and a shared library often is a link to its version.
    binds.extend((str(path.resolve()), f"{PYTHON}/{path.relative_to(base)}") for path in parts)
    return tuple(binds)


def _own_site_packages() -> list[Path]:
    """Return the packages of a virtual environment; those of the base come with the base."""
    if sys.prefix == sys.base_prefix:
        return []
    return [Path(sysconfig.get_path("purelib")).resolve()]


def _base_interpreter() -> str:
    if _in_usr(sys.base_prefix):
        return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    return f"{PYTHON}/bin/{_VERSION}"


def _links() -> Pairs:
    system = ((folder, os.readlink(folder)) for folder in _SYSTEM_FOLDERS if os.path.islink(folder))
    names = ("python", "python3", _VERSION)
    return (
        *system,
        *((f"{VENV}/bin/{name}", _base_interpreter()) for name in names),
    )


def _files(site_packages: Path | None) -> Pairs:
    home = _base_interpreter().rpartition("/")[0]
    shared = "false" if _own_site_packages() or site_packages else "true"
    return (
        ("/etc/passwd", f"user:x:{INNER_ID}:{INNER_ID}::{WORKSPACE}:/bin/sh\n"),
        ("/etc/group", f"user:x:{INNER_ID}:\n"),
        ("/etc/hostname", f"{HOSTNAME}\n"),
        ("/etc/hosts", f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        (f"{VENV}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = {shared}\n"),
        *_console_scripts([str(site_packages)] if site_packages else sys.path),
    )


def _console_scripts(folders: Sequence[str]) -> Pairs:
    """Create the commands of installed packages, since the originals name the host's Python."""
    found = (each.entry_points for each in metadata.distributions(path=list(folders)))
    scripts = {
        f"{VENV}/bin/{entry.name}": (
            f"#!{INTERPRETER}\nimport sys\nfrom {entry.module} import {entry.attr.split('.')[0]}\n"
            f"sys.exit({entry.attr}())\n"
        )
        for entries in found
        for entry in entries.select(group="console_scripts")
        if entry.attr and "/" not in entry.name and entry.module.partition(".")[0] != "assay"
    }
    return tuple(sorted(scripts.items()))
