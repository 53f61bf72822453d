"""Store of folders with names like `brisk-otter-4f2a`, found by name or prefix."""

import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import ClassVar, Final

from assay.contracts.errors import JournalError, UsageError
from assay.files import DRAFT, make_folder, sync_folder, write_file
from assay.storage import lock

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_TRIES: Final = 100
_LISTED: Final = 5
_QUALITIES: Final = (
    *("able", "amber", "bold", "brave", "brisk", "bright", "calm", "clear", "clever", "cosy"),
    *("crisp", "deft", "eager", "early", "fair", "fleet", "fond", "fresh", "gentle", "glad"),
    *("golden", "grand", "happy", "hardy", "honest", "keen", "kind", "lively", "lucid", "lucky"),
    *("mellow", "merry", "mild", "neat", "nimble", "noble", "patient", "plain", "plucky", "proud"),
    *("quick", "quiet", "rapid", "ready", "rosy", "sharp", "silent", "sleek", "smart", "snug"),
    *("solid", "spry", "steady", "stout", "sunny", "swift", "tidy", "trusty", "vivid", "warm"),
    *("wary", "wise", "witty", "zesty"),
)
_CREATURES: Final = (
    *("adder", "badger", "beaver", "bison", "bittern", "bream", "bunting", "carp", "cicada"),
    *("crane", "curlew", "dipper", "dove", "egret", "falcon", "ferret", "finch", "fox", "gecko"),
    *("gull", "hare", "hawk", "hedgehog", "heron", "hornet", "ibex", "ibis", "jackdaw", "jay"),
    *("kestrel", "kite", "lark", "lemur", "linnet", "lizard", "lynx", "magpie", "marmot", "marten"),
    *("merlin", "mole", "moth", "newt", "oriole", "osprey", "otter", "owl", "panda", "perch"),
    *("pika", "plover", "puffin", "quail", "raven", "robin", "seal", "shrew", "siskin", "sparrow"),
    *("stoat", "stork", "swan", "tapir", "tern", "thrush", "toad", "vole", "wren"),
)


def new_name() -> str:
    """Return a name that is easy to pronounce and to type, one of about 260 million."""
    quality, creature = secrets.choice(_QUALITIES), secrets.choice(_CREATURES)
    return f"{quality}-{creature}-{secrets.token_hex(2)}"


class FolderStore:
    """Folders with a request file each. Blocking: commands read small files."""

    noun: ClassVar[str]
    request: ClassVar[str]
    """The name of the file that a folder is created with."""
    dated_by: ClassVar[tuple[str, ...]]
    """The files that date a folder; the first one that exists counts."""
    hints: ClassVar[tuple[str, str]]
    """How to create the first one, and how to list all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str = "") -> str:
        """Return the full name for a name or prefix; without one, that of the newest.

        Raises:
            UsageError: If none matches, or several do.
        """
        whole = self.folder / name
        # A server opens folders by their whole names, and may have many of them.
        if _NAME.fullmatch(name) and whole.is_dir() and not whole.is_symlink():
            return name
        names = self.names()
        if not names:
            raise UsageError(f"there are no {self.noun}s yet", hint=self.hints[0])
        if not name:
            return names[0]
        # Only listed names are ever used as paths.
        meant = sorted(one for one in names if one.startswith(name.lower()))
        if not meant:
            raise UsageError(f"there is no {self.noun} {name!r}", hint=self.hints[1])
        if len(meant) > 1:
            shown = ", ".join(meant[:_LISTED]) + (", …" if len(meant) > _LISTED else "")
            raise UsageError(
                f"{name!r} is the beginning of {len(meant)} {self.noun}s", hint=f"they are {shown}"
            )
        return meant[0]

    def names(self) -> list[str]:
        """Return all names, the newest first."""
        try:
            with os.scandir(self.folder) as found:
                names = [
                    entry.name
                    for entry in found
                    if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise JournalError(
                f"the {self.noun}s in {str(self.folder)!r} cannot be read: {error.strerror}",
                hint="make the folder readable, or set another state_dir",
            ) from error
        return sorted(names, key=lambda name: (self.date_of(name), name), reverse=True)

    def date_of(self, name: str) -> float:
        """Return the date of a folder in seconds since the epoch, even if it is damaged."""
        for path in (*(self.folder / name / file for file in self.dated_by), self.folder / name):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def place(self, content: bytes) -> Path:
        """Create a folder with a request file under a new name, both or neither.

        Raises:
            JournalError: If it cannot be written.
        """
        try:
            make_folder(self.folder)
            for _ in range(_TRIES):
                name = new_name()
                draft = self.folder / f"{DRAFT}{name}"
                try:
                    draft.mkdir(mode=0o700)
                    write_file(draft / self.request, content)
                    # Fails if the name is taken, because no such folder is empty.
                    draft.rename(self.folder / name)
                except OSError as error:
                    shutil.rmtree(draft, ignore_errors=True)
                    if isinstance(error, FileExistsError) or (self.folder / name).exists():
                        continue
                    raise
                sync_folder(self.folder)
                return self.folder / name
            raise FileExistsError(errno.EEXIST, "all names are taken")
        except OSError as error:
            raise JournalError(
                f"no {self.noun} can be written below {str(self.folder)!r}: {error.strerror}",
                hint="make room there, or set another state_dir",
            ) from error

    def delete(self, name: str) -> None:
        """Delete a folder with all its contents.

        Raises:
            UsageError: If a process works on it.
            JournalError: If it cannot be deleted.
        """
        if lock.is_held(self.folder / name):
            raise UsageError(
                f"a process works on the {self.noun} {name!r}", hint="end or close it first"
            )
        # Renamed first: a partially deleted folder has no name.
        gone = self.folder / f"{DRAFT}{name}"
        try:
            (self.folder / name).rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise JournalError(
                f"the {self.noun} {name!r} cannot be removed: {error.strerror}"
            ) from error
