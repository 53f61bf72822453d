"""The names that screening flags, with reasons, and the policy that adjusts them.

`Remark` is the result type of all scans.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.execution import WORKSPACE

_PROGRAMS: Final = "starts other programs"
_NETWORK: Final = "talks to the network"
_MEMORY: Final = "calls into native memory, past the interpreter"
_CODE: Final = "runs code that is made at run time"
_PROCESS: Final = "ends or signals processes"
_PRIVILEGE: Final = "changes what the process is allowed"
_OBJECTS: Final = "reaches objects that were not handed over"
_PACKAGES: Final = "installs packages"


def _named(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


IMPORTS: Final[Mapping[str, str]] = {
    **_named(
        "subprocess _posixsubprocess pty popen2 commands posix nt sh pexpect plumbum "
        "distutils.spawn",
        _PROGRAMS,
    ),
    **_named("ctypes _ctypes cffi _cffi_backend numpy.ctypeslib", _MEMORY),
    **_named("socket _socket socketserver ssl _ssl asyncore asynchat", _NETWORK),
    **_named("ftplib telnetlib smtplib smtpd poplib imaplib nntplib xmlrpc", _NETWORK),
    **_named("http.client http.server urllib.request urllib2 webbrowser", _NETWORK),
    **_named("requests httpx aiohttp urllib3 pycurl paramiko fabric scapy zmq websocket", _NETWORK),
    **_named(
        "websockets grpc docker boto3 botocore telnetlib3 multiprocessing.connection", _NETWORK
    ),
    **_named("pip ensurepip venv", _PACKAGES),
    **_named("marshal code codeop runpy imp zipimport", _CODE),
}
"""Modules by full name; includes their submodules."""

CALLS: Final[Mapping[str, str]] = {
    **_named("builtins.eval builtins.exec runpy.run_path runpy.run_module", _CODE),
    **_named("marshal.loads marshal.load", _CODE),
    **_named("importlib.util.spec_from_file_location importlib.util.module_from_spec", _CODE),
    **_named("importlib.machinery.SourceFileLoader importlib.machinery.ExtensionFileLoader", _CODE),
    **_named("numpy.ctypeslib.load_library", _MEMORY),
    **_named("os.system os.popen os.startfile os.fork os.forkpty os.vfork os.openpty", _PROGRAMS),
    **_named("os.execl os.execle os.execlp os.execlpe", _PROGRAMS),
    **_named("os.execv os.execve os.execvp os.execvpe", _PROGRAMS),
    **_named("os.spawnl os.spawnle os.spawnlp os.spawnlpe", _PROGRAMS),
    **_named("os.spawnv os.spawnve os.spawnvp os.spawnvpe", _PROGRAMS),
    **_named("os.posix_spawn os.posix_spawnp pty.spawn", _PROGRAMS),
    **_named("asyncio.create_subprocess_exec asyncio.create_subprocess_shell", _PROGRAMS),
    **_named("asyncio.subprocess.create_subprocess_exec", _PROGRAMS),
    **_named("asyncio.subprocess.create_subprocess_shell", _PROGRAMS),
    **_named("anyio.run_process anyio.open_process trio.run_process", _PROGRAMS),
    **_named("os.kill os.killpg os.abort os._exit signal.pthread_kill", _PROCESS),
    **_named("os.pidfd_open signal.pidfd_send_signal faulthandler._sigsegv", _PROCESS),
    **_named("os.setuid os.setgid os.seteuid os.setegid os.setreuid os.setregid", _PRIVILEGE),
    **_named("os.setresuid os.setresgid os.setgroups os.initgroups os.chroot", _PRIVILEGE),
    **_named("os.unshare os.setns os.mknod", _PRIVILEGE),
    **_named("asyncio.open_connection asyncio.open_unix_connection", _NETWORK),
    **_named("asyncio.start_server asyncio.start_unix_server logging.config.listen", _NETWORK),
    **_named("gc.get_objects gc.get_referrers gc.get_referents", _OBJECTS),
    **_named("sys._current_frames sys._current_exceptions", _OBJECTS),
}
"""Functions by full name. A mention is enough, because another place may call it."""

BUILDERS: Final[Mapping[str, str]] = _named("types.CodeType types.FunctionType", _CODE)
"""Classes, flagged only if called, because `isinstance` and annotations mention them too."""

ATTRIBUTES: Final[Mapping[str, str]] = {
    **_named("__subclasses__ __globals__ __builtins__ func_globals", _OBJECTS),
    **_named("f_globals f_locals f_builtins f_back gi_frame cr_frame ag_frame tb_frame", _OBJECTS),
    **_named("subprocess_exec subprocess_shell", _PROGRAMS),
}
"""Attributes of any object."""

CLIMBS: Final = frozenset({"__mro__", "__bases__", "__base__"})
"""Attributes that lead from any value to every class; harmless on a known class."""

OPENERS: Final = frozenset({"builtins.open", "io.open", "codecs.open", "io.FileIO"})
PATHS: Final = frozenset({"pathlib.Path", "pathlib.PosixPath"})
PATH_JOINS: Final = frozenset({"os.path.join", "posixpath.join"})
EXPANDERS: Final = frozenset({"os.path.expanduser", "posixpath.expanduser"})
CHANGERS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.truncate"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.lchown", "os.mkdir", "os.makedirs"), (0,)),
    **dict.fromkeys(("os.rename", "os.replace", "os.renames", "shutil.move"), (0, 1)),
    **dict.fromkeys(("os.symlink", "os.link", "shutil.copy", "shutil.copy2"), (1,)),
    **dict.fromkeys(("shutil.copyfile", "shutil.copytree", "shutil.copymode"), (1,)),
    **dict.fromkeys(("shutil.rmtree", "shutil.chown"), (0,)),
}
"""Functions that change files, and the indexes of their path arguments."""
PATH_CHANGERS: Final = frozenset(
    {
        *("write_text", "write_bytes", "unlink", "rmdir", "mkdir", "touch", "chmod", "rename"),
        *("replace", "symlink_to", "hardlink_to"),
    }
)
"""Methods that change the file of a path."""

_ELSEWHERE_FINE: Final = (PurePosixPath("/tmp"), PurePosixPath("/dev/shm"))  # noqa: S108 - the program's own
_SINKS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"})


@dataclass(frozen=True, kw_only=True)
class ScreeningPolicy:
    """Which names are refused: the built-in tables plus `deny_*`, minus `allow`."""

    deny_imports: tuple[str, ...] = ()
    """Additional modules by full name: `pickle`, `concurrent.futures`."""
    deny_calls: tuple[str, ...] = ()
    """Additional functions by full name: `os.remove`, `builtins.compile`."""
    allow: tuple[str, ...] = ()
    """Allowed modules, functions or attributes: `socket`, `os.kill`, `f_back`; or writable
    folders: `/data`."""
    workspace: PurePosixPath = WORKSPACE
    """The folder whose files a program may write, in addition to `/tmp`."""

    @cached_property
    def imports(self) -> Mapping[str, str]:
        return self._bent(IMPORTS, self.deny_imports)

    @cached_property
    def calls(self) -> Mapping[str, str]:
        return self._bent(CALLS, self.deny_calls)

    @cached_property
    def builders(self) -> Mapping[str, str]:
        return self._bent(BUILDERS, ())

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        return self._bent(ATTRIBUTES, ())

    def _bent(self, names: Mapping[str, str], added: Iterable[str]) -> Mapping[str, str]:
        allowed = frozenset(self.allow)
        told = {**names, **dict.fromkeys(added, "is denied by the settings")}
        return {name: reason for name, reason in told.items() if name not in allowed}

    def refused_import(self, module: str) -> tuple[str, str] | None:
        """Return the name by which a module is refused, and why; None if it is allowed.

        The most specific name decides: `http.client` may be refused where `http` is not, and
        `concurrent.futures` allowed where `concurrent` is refused.
        """
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.allow:
                return None
            if name in self.imports:
                return name, self.imports[name]
        return None

    def is_outside(self, path: str) -> bool:
        """Whether a path, as written, is outside the folders that a program may write."""
        if path == "~" or path.startswith("~/"):
            return True
        where = _normalised(path)
        if not where.is_absolute() or str(where) in _SINKS:
            return False
        allowed = (PurePosixPath(name) for name in self.allow if name.startswith("/"))
        fine = (self.workspace, *_ELSEWHERE_FINE, *allowed)
        return not any(where.is_relative_to(folder) for folder in fine)


def _normalised(path: str) -> PurePosixPath:
    """Return a path without `..`, as far as the text shows."""
    # Two leading slashes count as one.
    parts: list[str] = []
    for part in PurePosixPath(re.sub("^/+", "/", path)).parts:
        if part != "..":
            parts.append(part)
        elif len(parts) > 1:
            parts.pop()
    return PurePosixPath(*parts)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Remark:
    """One remark about a file under a policy."""

    line: int
    rule: str
    """`import`, `call`, `attribute`, `dynamic_import`, `write_outside`, `text` or `unreadable`."""
    explanation: str
    """What was found and why it matters, in one line."""
