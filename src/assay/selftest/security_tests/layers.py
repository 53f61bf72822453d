"""Attacks on layers: to change the folder on the host, to hide changes, to lead the host astray.

Any user of the machine may write to the layer of an attack, so that only the sandbox protects it.
"""

import hashlib
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from textwrap import dedent

import anyio

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import PythonCode, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import WorkspaceLayer
from assay.selftest.programs import describe
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)

_CONFIG = AttackConfig(group="layers")
_FILES = {"file": b"untouched", "folder/inside": b"untouched too", "folder/deep/file": b"deep"}
_LOOKS = 30


@contextmanager
def _planted_layer() -> Generator[WorkspaceLayer]:
    with tempfile.TemporaryDirectory(prefix="assay-layer-") as name:
        top = Path(name).resolve()
        top.chmod(0o777)
        for path, content in _FILES.items():
            file = top / "layer" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o666)
        for folder in (top / "layer", *(top / "layer").rglob("*")):
            if folder.is_dir():
                folder.chmod(0o777)
        yield WorkspaceLayer(hashlib.sha256(repr(_FILES).encode()).hexdigest(), top / "layer")


@asynccontextmanager
async def _opened(context: AttackContext, layer: WorkspaceLayer) -> AsyncGenerator[Sandbox]:
    async with context.backend.open_sandbox(TIGHT, SandboxSpec(layer=layer)) as sandbox:
        yield sandbox


async def _run(sandbox: Sandbox, context: AttackContext, layer: WorkspaceLayer, body: str) -> None:
    facts = f"CANARY = {context.canaries.facts()!r}\nLAYER = {str(layer.folder)!r}\n"
    result = await sandbox.run(PythonCode(source=(facts + _TOOLS + dedent(body)).encode()))
    assert "attacked" in result.stdout, f"the attack tested nothing: {describe(result)}"


_TOOLS = """
import ctypes, mmap, os, shutil, stat
libc = ctypes.CDLL(None, use_errno=True)

def attempt(act, *values):
    try:
        return act(*values)
    except (OSError, ValueError, AttributeError):
        return None

def spoil(place):
    for path in (place, os.path.join(place, "file"), os.path.join(place, "folder", "inside")):
        attempt(lambda: os.write(os.open(path, os.O_WRONLY), b"changed"))
        attempt(lambda: os.close(os.open(path + ".new", os.O_CREAT | os.O_WRONLY)))
        attempt(os.chmod, path, 0o777)
        attempt(os.remove, path)

def everywhere():
    # Folders that only a mistake could make visible, and what leads back to the host.
    yield from (LAYER, "/starts", "/starts/1", "/layers", "/boxes", "/slots", "/stage")
    for root in ("/proc/self/root", "/proc/1/root", "/proc/self/cwd/../..", "/proc/2/cwd"):
        yield from (root + LAYER, root + "/starts/1")
    for number in range(3, 40):
        yield f"/proc/self/fd/{number}"
        yield f"/proc/1/fd/{number}"
    for number in range(1, 60):
        yield from (f"/boxes/{number}/upper", f"/boxes/{number}/work", f"/starts/{number}")
"""


def _has_changed(layer: WorkspaceLayer) -> str:
    found = {
        str(path.relative_to(layer.folder)): path
        for path in layer.folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }
    if found.keys() != _FILES.keys():
        return f"its files are {sorted(found)}"
    for name, path in found.items():
        if path.is_symlink() or path.read_bytes() != _FILES[name]:
            return f"{name} was changed"
        if path.stat().st_mode & 0o777 != 0o666 or path.stat().st_nlink != 1:
            return f"the mode or a link of {name} was changed"
    return ""


async def _spoils(context: AttackContext, body: str) -> Finding:
    """Attack a layer; what a second sandbox sees of it must not change either."""
    with _planted_layer() as layer:
        async with _opened(context, layer) as sandbox, _opened(context, layer) as other:
            await _run(sandbox, context, layer, body)
            evidence = _has_changed(layer)
            for name, content in _FILES.items():
                seen = await other.read_file(PurePosixPath(name))
                evidence = evidence or ("" if seen == content else f"{name} holds {seen!r:.80}")
    return Finding(breached=bool(evidence), evidence=evidence or "nothing was changed")


async def _changed_by_the_host(context: AttackContext) -> Finding:
    del context
    with _planted_layer() as layer:
        (layer.folder / "file").write_bytes(b"changed")
        evidence = _has_changed(layer)
    return Finding(breached=bool(evidence), evidence=evidence)


SPOILING = build_attacks(
    {
        "files_in_place": """
            with open("file", "r+b") as file:
                file.write(b"changed")
                file.truncate(3)
            with open("folder/inside", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
                view[:7] = b"changed"
            attempt(os.truncate, "folder/deep/file", 0)
            spoil(".")
            print("attacked")
        """,
        "hard_links": """
            for number, name in enumerate(("file", "folder/inside", "/proc/self/cwd/file")):
                attempt(os.link, name, f"link{number}")
                attempt(lambda: os.link(name, f"/tmp/link{number}"))
                for place in (f"link{number}", f"/tmp/link{number}"):
                    attempt(lambda: open(place, "r+b").write(b"changed"))
            held = os.open("file", os.O_RDONLY)
            attempt(os.link, f"/proc/self/fd/{held}", "again")
            attempt(lambda: os.write(os.open(f"/proc/self/fd/{held}", os.O_RDWR), b"changed"))
            attempt(lambda: open("again", "r+b").write(b"changed"))
            print("attacked")
        """,
        "modes_owners_times_and_attributes": """
            for name in (".", "file", "folder", "folder/inside"):
                attempt(os.chmod, name, 0o700)
                attempt(os.chown, name, 0, 0)
                attempt(os.utime, name, (1, 1))
                for attribute in ("user.assay", "user.overlay.opaque", "user.overlay.redirect",
                                  "user.overlay.metacopy", "user.overlay.origin",
                                  "trusted.overlay.opaque"):
                    attempt(os.setxattr, name, attribute, b"y")
            print("attacked")
        """,
        "other_ways_to_the_folder": """
            for place in everywhere():
                spoil(place)
            print("attacked")
        """,
        "mounts": """
            def attack():
                for flags in (32, 32 | 4096, 4096, 4096 | 16384, 1 << 18, 1 << 20):
                    for place in ("/app", "/", "/starts/1", "."):
                        libc.mount(b"none", place.encode(), None, flags, None)
                        libc.mount(place.encode(), b"/tmp", None, flags, None)
                overlay = b"lowerdir=/app,upperdir=/tmp/u,workdir=/tmp/w,userxattr"
                libc.mount(b"overlay", b"/app", b"overlay", 0, overlay)
                for place in (b"/app", b"/tmp", b"."):
                    libc.umount2(place, 2)
                # open_tree, move_mount, fsopen, mount_setattr
                copied = libc.syscall(428, -100, b"/app", 1)
                libc.syscall(429, copied, b"", -100, b"/tmp", 4)
                libc.syscall(430, b"overlay", 0)
                libc.syscall(442, -100, b"/app", 0, bytes(32), 32)
                spoil("/app")
                spoil("/tmp")
                for place in everywhere():
                    spoil(place)
            if os.fork() == 0:
                libc.unshare(0x10000000 | 0x20000)
                attack()
                os._exit(0)
            os.wait()
            attack()
            print("attacked")
        """,
        "handles": """
            class Handle(ctypes.Structure):
                _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int),
                            ("data", ctypes.c_ubyte * 128)]
            for name in (b"file", b"folder/inside", b"."):
                handle, mount = Handle(128), ctypes.c_int()
                libc.name_to_handle_at(-100, name, ctypes.byref(handle), ctypes.byref(mount), 0)
                for place in (".", "/", "/tmp"):
                    where = attempt(os.open, place, os.O_RDONLY) or -100
                    found = libc.open_by_handle_at(where, ctypes.byref(handle), os.O_RDWR)
                    attempt(os.write, found, b"changed")
            print("attacked")
        """,
        "renames_and_devices": """
            attempt(os.mknod, "file2", stat.S_IFCHR | 0o666, os.makedev(0, 0))
            attempt(os.mknod, "folder/inside", stat.S_IFCHR | 0o666, os.makedev(0, 0))
            attempt(os.rename, "folder", "moved")
            attempt(os.rename, "file", "folder/inside")
            libc.renameat2(-100, b"file", -100, b"folder", 2)
            libc.renameat2(-100, b"folder/deep", -100, b"gone", 4)
            attempt(shutil.rmtree, "folder")
            attempt(os.symlink, LAYER, "folder")
            spoil("folder")
            print("attacked")
        """,
    },
    _spoils,
    control=_changed_by_the_host,
    config=_CONFIG,
    name="a_layer_is_not_changed_by_{name}",
)


async def _hides(context: AttackContext, body: str) -> Finding:
    """Change or remove `file` and `folder/inside`; a change that is not listed is hidden."""
    with _planted_layer() as layer:
        async with _opened(context, layer) as sandbox:
            await _run(sandbox, context, layer, body)
            changes = await sandbox.changes()
    listed = {*(str(entry.path) for entry in changes.written), *map(str, changes.removed)}
    hidden = [name for name in ("file", "folder/inside") if name not in listed]
    return Finding(breached=bool(hidden), evidence=f"hidden: {hidden}; listed: {sorted(listed)}")


HIDING = build_attacks(
    {
        "with_the_old_size_and_times": """
            for name in ("file", "folder/inside"):
                before = os.stat(name)
                with open(name, "r+b") as file:
                    file.write(b"X")
                os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
            print("attacked")
        """,
        "with_attributes_of_the_mount": """
            os.remove("file")
            open("file", "wb").write(b"UNTOUCHED")
            shutil.rmtree("folder")
            os.mkdir("folder")
            for name in (".", "file", "folder"):
                for attribute in attempt(os.listxattr, name) or ():
                    attempt(os.removexattr, name, attribute)
                for attribute, value in (("opaque", b"n"), ("redirect", b"/folder"),
                                         ("metacopy", b""), ("whiteout", b""), ("opaque", b"x")):
                    attempt(os.setxattr, name, f"user.overlay.{attribute}", value)
                    attempt(os.setxattr, name, f"user.overlay.overlay.{attribute}", value)
                attempt(os.removexattr, name, "user.overlay.opaque")
            print("attacked")
        """,
        "by_putting_a_removed_folder_back": """
            os.remove("file")
            shutil.rmtree("folder")
            os.makedirs("folder/deep")
            open("folder/deep/file", "wb").write(b"deep")
            print("attacked")
        """,
    },
    _hides,
    control=partial(_hides, body="print('attacked')"),
    config=_CONFIG,
    name="a_change_is_not_hidden_{name}",
)


async def _leads_out(context: AttackContext, body: str) -> Finding:
    """Look for changes while a program swaps folders; the host must not leave the workspace."""
    seen: set[str] = set()
    with _planted_layer() as layer:
        async with _opened(context, layer) as sandbox, anyio.create_task_group() as tasks:
            tasks.start_soon(_run, sandbox, context, layer, body)
            looks = 0
            while looks < _LOOKS:
                with suppress(WorkspaceError):
                    changes = await sandbox.changes()
                    seen.update(entry.path.name for entry in changes.written)
                    # Count only looks after the start of the program.
                    looks += bool(changes.written or changes.removed)
            await sandbox.write_file(PurePosixPath("stop"), b"")
    leaked = seen & {"secret", "writable"}
    return Finding(breached=bool(leaked), evidence=f"the host saw {sorted(leaked)}")


_SWAP = """
import time
end = time.monotonic() + 7
{first}
while not os.path.exists("stop") and time.monotonic() < end:
    for name in ("folder", "trap"):
        shutil.rmtree(name, ignore_errors=True)
        attempt(os.symlink, {target}, name)
        attempt(os.remove, name)
        attempt(os.makedirs, name + "/deep")
print("attacked")
"""

LEADING_OUT = (
    build_attack(
        "changes_do_not_follow_folders_that_become_links",
        attack=partial(_leads_out, body=_SWAP.format(first="", target='CANARY["directory"]')),
        control=partial(
            _leads_out,
            body=_SWAP.format(first='open("secret", "w").close()', target='"nowhere"'),
        ),
        config=_CONFIG,
    ),
)
