"""Survey: for which languages tests can run here, checked in a sandbox."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from assay.bench.exercise import Language
from assay.bench.toolchains.all import TOOLCHAINS, find_kits, place_of, versions_of
from assay.bench.toolchains.toolchain import Kit, OnNotice
from assay.contracts.errors import AssayError
from assay.settings.load import Settings
from assay.wiring import open_backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One language."""

    language: Language
    kit: Kit
    version: str
    problem: str = ""
    """Why the installation failed; empty if it succeeded or was not tried."""

    @property
    def ready(self) -> bool:
        return self.kit.ready

    @property
    def words(self) -> str:
        if self.ready:
            return f"ready    {self.version}"
        return f"not run  missing: {', '.join(one.what for one in self.kit.missing)}"

    @property
    def fixes(self) -> tuple[str, ...]:
        tried = (f"not installed: {self.problem}",) if self.problem else ()
        fixes = (one.fix for one in self.kit.missing)
        return tuple(dict.fromkeys(f"         {line}" for line in (*tried, *fixes)))

    def fields(self) -> dict[str, Any]:
        """Return all values for JSON output."""
        missing = [{"what": one.what, "fix": one.fix} for one in self.kit.missing]
        return {
            "ready": self.ready,
            "version": self.version,
            "missing": missing,
            "problem": self.problem,
        }


async def survey(
    settings: Settings, languages: Iterable[Language], *, install: bool, on_notice: OnNotice
) -> tuple[Found, ...]:
    """Find toolchains, install missing ones on request, and query versions.

    An installation error is reported with its language; the other languages are still installed.

    Raises:
        AssayError: If no sandbox can be opened.
    """
    place = place_of(settings)
    wanted = tuple(languages)
    problems: dict[Language, str] = {}
    for language in wanted if install else ():
        if not TOOLCHAINS[language].find(place).ready:
            try:
                await TOOLCHAINS[language].install(place, on_notice)
            except (AssayError, OSError) as error:
                hint = error.hint if isinstance(error, AssayError) else ""
                problems[language] = "; ".join(filter(None, (str(error), hint)))
    kits = find_kits(place, wanted)
    async with open_backend(kits.sandbox_settings(settings.sandbox)) as backend:
        versions = await versions_of(backend, kits)
    return tuple(
        Found(
            language=language,
            kit=kit,
            version=versions.get(language, ""),
            problem=problems.get(language, ""),
        )
        for language, kit in kits.found.items()
    )
