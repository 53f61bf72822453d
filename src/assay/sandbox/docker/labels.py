"""Ownership labels of containers, which let Assay find and remove orphaned ones.

A pid identifies a process only within its pid namespace, so the labels include the namespace. An
Assay process in a container with the host's socket must not judge owners that it cannot see.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.native.host.registry import ProcessMark, mark

LABEL: Final = "dev.assay.sandbox"
IMAGE_LABEL: Final = "dev.assay.image"
OWNER_PLACE: Final = "dev.assay.owner.place"
_PID: Final = "dev.assay.owner.pid"
_STARTED: Final = "dev.assay.owner.started"
_SINCE: Final = "dev.assay.since"
_SETTLING_S: Final = 600.0
"""A container of an invisible owner that has not started after this time counts as orphaned."""

State = Literal["owned", "orphaned", "elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container that some Assay process created."""

    id: str
    name: str
    image: str
    owner: ProcessMark
    since: float
    """Seconds since the epoch."""
    state: State


def place() -> str:
    """Return a unique name of this process's pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def owner_labels() -> dict[str, str]:
    """Return the labels of a container of this process."""
    own = mark(os.getpid())
    return {
        LABEL: "1",
        OWNER_PLACE: place(),
        _PID: str(own.pid),
        _STARTED: str(own.started),
        _SINCE: f"{time.time():.3f}",
    }


def read_record(found: Mapping[str, Any], *, here: str, now: float) -> ContainerRecord:
    """Parse an entry of the Docker engine's list. Labels are untrusted: any value may occur."""
    labels: Mapping[str, str] = found.get("Labels") or {}
    owner = ProcessMark(pid=_number(labels, _PID), started=_number(labels, _STARTED))
    try:
        since = float(labels.get(_SINCE, "0"))
    except ValueError:
        since = 0.0
    running = found.get("State") == "running"
    state: State
    if labels.get(OWNER_PLACE) == here:
        state = "owned" if owner.alive else "orphaned"
    else:
        state = "elsewhere" if running or now - since < _SETTLING_S else "orphaned"
    return ContainerRecord(
        id=str(found.get("Id", "")),
        name=str((found.get("Names") or [""])[0]).lstrip("/"),
        image=str(found.get("Image", "")),
        owner=owner,
        since=since,
        state=state,
    )


async def list_containers(engine: Engine) -> tuple[ContainerRecord, ...]:
    """Return all containers of Assay, the oldest first."""
    here, now = place(), time.time()
    found = [read_record(one, here=here, now=now) for one in await engine.containers(LABEL)]
    return tuple(sorted(found, key=lambda record: record.since))


async def remove_orphans(
    engine: Engine, names: frozenset[str] | None = None
) -> tuple[ContainerRecord, ...]:
    """Remove the containers whose owner has exited, limited to these names if given.

    Returns the removed ones.
    """
    removed: list[ContainerRecord] = []
    for record in await list_containers(engine):
        if record.state == "orphaned" and (names is None or record.name in names):
            try:
                await engine.remove(record.id)
            except EngineError:
                continue  # the next call finds a container that cannot be removed now
            removed.append(record)
    return tuple(removed)


def _number(labels: Mapping[str, str], name: str) -> int:
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
