"""Concurrent checks beyond isolation, each with a timeout."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import anyio
from anyio import to_thread

from assay.cli.doctor.connectivity import look_at_backends, look_at_models, look_at_services
from assay.cli.doctor.installed import (
    look_at_extras,
    look_at_folders,
    look_at_keys,
    look_at_toolchains,
)
from assay.contracts.errors import AssayError
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.load import Settings

Sections = dict[str, tuple[Finding, ...]]
"""Findings by section, in display order."""

_WITHIN_S: Final = 20.0


async def look_at_everything(settings: Settings, *, within_s: float = _WITHIN_S) -> Sections:
    """Run all checks concurrently; a check that times out becomes a finding."""
    still: dict[str, Callable[[], Iterator[Finding]]] = {
        "keys": lambda: look_at_keys(settings.models),
        "extras": look_at_extras,
        "toolchains": lambda: look_at_toolchains(settings.sandbox.search_path),
        "folders": lambda: look_at_folders(settings),
    }
    asking: dict[str, Callable[[], AsyncIterator[Finding]]] = {
        "models": lambda: look_at_models(settings.models),
        "backends": lambda: look_at_backends(settings.sandbox),
        "services": lambda: look_at_services(settings),
    }
    found: dict[str, list[Finding]] = {}

    async def look(name: str) -> None:
        findings = found.setdefault(name, [])
        try:
            with anyio.fail_after(within_s):
                if name in still:
                    findings += await to_thread.run_sync(
                        lambda: list(still[name]()), abandon_on_cancel=True
                    )
                else:
                    async for finding in asking[name]():
                        findings.append(finding)
        except TimeoutError:
            told = f"no answer in {within_s:g} s"
            findings.append(Finding(name=name, status="timed_out", detail=told))
        except AssayError as error:
            findings.append(Finding(name=name, status="failed", detail=str(error), fix=error.hint))

    order = ("keys", "models", "backends", "services", "extras", "toolchains", "folders")
    async with anyio.create_task_group() as tasks:
        for name in order:
            tasks.start_soon(look, name)
    return {name: tuple(found[name]) for name in order}
