"""Bundle of the code for the virtual machine, and the command that installs it."""

import base64
import io
import shlex
import zipfile
from functools import cache
from importlib.resources import files
from typing import Final

_MODULES: Final = (
    "contracts/distribution.py",
    "contracts/errors.py",
    "contracts/execution.py",
    "sandbox/output.py",
    "sandbox/native/host/disk_use.py",
    "sandbox/native/host/files.py",
    "sandbox/native/kernel/libc.py",
    "sandbox/native/kernel/rmtree.py",
    "sandbox/native/kernel/syscalls.py",
    "sandbox/native/host/memory_use.py",
    "sandbox/native/guest/jail_plan.py",
    "sandbox/native/host/usage_monitor.py",
    "sandbox/e2b/agent/run.py",
    "sandbox/e2b/agent/main.py",
    "sandbox/e2b/agent/bootstrap.py",
)
_PACKAGES: Final = (
    "",
    "contracts/",
    "sandbox/",
    "sandbox/e2b/",
    "sandbox/e2b/agent/",
    "sandbox/native/",
    "sandbox/native/guest/",
    "sandbox/native/host/",
    "sandbox/native/kernel/",
)
_START: Final = "from assay.sandbox.e2b.agent.main import main\nmain()\n"

_UNPACK: Final = """
import base64, io, json, os, pwd, sys, zipfile
state, workspace, user, packed = sys.argv[1:]
try:
    if sys.version_info < (3, 11):
        raise SystemExit(json.dumps({"trouble": "old_python"}))
    os.makedirs(state + "/far", mode=0o755)
    zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))).extractall(state + "/far")
    ours = os.geteuid() == 0 and user != "root"
    for path in (workspace, state + "/tmp"):
        os.makedirs(path, exist_ok=True)
        if ours:
            account = pwd.getpwnam(user)
            os.chown(path, account.pw_uid, account.pw_gid)
    if os.listdir(workspace):
        raise SystemExit(json.dumps({"trouble": "not_empty"}))
except KeyError:
    raise SystemExit(json.dumps({"trouble": "no_user"}))
except OSError as error:
    raise SystemExit(json.dumps({"trouble": "refused", "why": str(error)}))
print(json.dumps({"python": sys.executable}), flush=True)
os.execv(sys.executable, [sys.executable, "-ESs", state + "/far", "serve", state + "/socket"])
"""
"""Answers in one line, and waits until the request server runs."""

_ASK = """
import os, sys
try:
    # Not the module around it, which takes longer to load than all the rest.
    import _socket
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.connect(sys.argv[1] + "/socket")
except (ImportError, OSError):
    os.execv(sys.executable, [sys.executable, "-ESs", sys.argv[1] + "/far", *sys.argv[2:]])
words = (" ".join(sys.argv[2:]) + "\\n").encode()
output = (1).to_bytes(4, sys.byteorder)
sent = asking.sendmsg([words], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, output)])
if sent < len(words):  # sending nothing fails where the answer was given already
    asking.sendall(words[sent:])
asking.recv(1)
"""


def setup_command(*, state: str, workspace: str, user: str) -> str:
    """Return the command that prepares a new machine."""
    words = ("python3", "-ISE", "-c", _UNPACK, state, workspace, user, packed())
    return "exec " + shlex.join(words) + " 2>&1"


def act_command(*, python: str, state: str, act: str, request: str) -> str:
    """Return the command that sends one request."""
    return "exec " + shlex.join((python, "-ISE", f"{state}/far/ask.py", state, act, request))


@cache
def packed() -> str:
    """Return the modules as a zip archive in base64."""
    buffer = io.BytesIO()
    package = files("assay")
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in _PACKAGES:
            # Empty: the real ones import more than is needed.
            archive.writestr(f"assay/{folder}__init__.py", "")
        for name in _MODULES:
            archive.writestr(f"assay/{name}", package.joinpath(name).read_bytes())
        archive.writestr("__main__.py", _START)
        archive.writestr("ask.py", _ASK)
    return base64.b64encode(buffer.getvalue()).decode()
