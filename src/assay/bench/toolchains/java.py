"""Java: javac and Debian's JUnit launcher, without Gradle, which would need a network.

Some exercises need a newer AssertJ than Debian 12 has, so it comes from the archive of the next
release: architecture-independent, checked by its digest. Jars outside of any archive can be put
into the folder by hand; exercises that need them do not run otherwise.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import anyio

from assay.bench.exercise import Exercise
from assay.bench.toolchains.toolchain import (
    Commands,
    Installation,
    Missing,
    OnNotice,
    Toolchain,
    in_folder,
    package,
    run_quietly,
)
from assay.contracts.errors import AssayError
from assay.settings.load import Settings

_SHARED: Final = Path("/usr/share/java")
_JUNIT: Final = (
    "junit-jupiter-api",
    "junit-jupiter-engine",
    "junit-jupiter-params",
    "junit-platform-commons",
    "junit-platform-console",
    "junit-platform-engine",
    "junit-platform-launcher",
    "junit-platform-reporting",
    "opentest4j",
    "opentest4j-reporting-events",
    "opentest4j-reporting-schema",
    "apiguardian-api",
    "picocli",
    "univocity-parsers",
    "byte-buddy",
)
_ASSERTJ: Final = "assertj-core-3.26.3.jar"
_PACKAGE: Final = "pool/main/a/assertj-core/libassertj-core-java_3.26.3-2_all.deb"
_SHA256: Final = "9db10b36f2dfe11482bba7aefba7003a522dde2747d2332c4ad56f95ebae32d8"
_COMES_WITH_JUNIT: Final = frozenset({"junit-bom", "junit-jupiter", "assertj-core"})
_DEPENDENCY: Final = re.compile(
    r"""^\s*(?:testI|i)mplementation\s*(?:platform)?\s*\(?\s*["'][\w.-]+:([\w.-]+)""", re.MULTILINE
)
_CLASSES: Final = "/tmp/classes"
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Startup takes most of the time of such short programs."""


class JavaToolchain(Toolchain):
    """Java with JUnit and AssertJ."""

    language = "java"
    versions = (("javac", "--version"),)
    programs: Mapping[str, str] = {"javac": "default-jdk-headless"}

    def missing_parts(self, folder: Path) -> Iterable[Missing]:
        if any(not (_SHARED / f"{name}.jar").exists() for name in _JUNIT):
            yield package("JUnit 5", "junit5", "libbyte-buddy-java")
        if not (folder / _ASSERTJ).is_file():
            yield Missing(what="AssertJ 3.26")

    async def download(self, settings: Settings, folder: Path, on_notice: OnNotice) -> None:
        del settings
        on_notice("fetching AssertJ 3.26 from Debian's archive")
        listed = await anyio.run_process(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)"], check=False
        )
        scratch = folder / ".partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        file = scratch / "assertj.deb"
        problem = "apt knows no archive"
        try:
            for archive in dict.fromkeys(listed.stdout.decode().split()):
                # apt's downloader, which knows proxies and checks the digest.
                command = ["/usr/lib/apt/apt-helper", "download-file"]
                address = f"{archive.rstrip('/')}/{_PACKAGE}"
                problem = await run_quietly([*command, address, str(file), f"SHA256:{_SHA256}"])
                if not problem:
                    problem = await run_quietly(["dpkg-deb", "-x", str(file), str(scratch)])
                if not problem:
                    (scratch / "usr/share/java" / _ASSERTJ).replace(folder / _ASSERTJ)
                    return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        hint = f"put {_ASSERTJ} into {folder}"
        raise AssayError(f"AssertJ cannot be fetched: {problem}", hint=hint)

    def lacks(self, exercise: Exercise, installation: Installation) -> str:
        build = exercise.workspace.text(exercise.folder / "build.gradle") or ""
        wanted = set(_DEPENDENCY.findall(build)) - _COMES_WITH_JUNIT
        there = {path.name for path in installation.folder.glob("*.jar")}
        lacking = sorted(
            name for name in wanted if not any(jar.startswith(f"{name}-") for jar in there)
        )
        return f"missing: {', '.join(f'{name}.jar' for name in lacking)}" if lacking else ""

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        jars = [*(str(_SHARED / f"{name}.jar") for name in _JUNIT)]
        jars.extend(str(path) for path in sorted(installation.folder.glob("*.jar")))
        quick = " ".join(_QUICK)
        for_javac = " ".join(f"-J{flag}" for flag in _QUICK)
        bare = (
            f"export CLASSPATH={':'.join([_CLASSES, *jars])} && "
            f"javac {for_javac} -nowarn -d {_CLASSES} src/main/java/*.java src/test/java/*.java && "
            f"java {quick} org.junit.platform.console.ConsoleLauncher --disable-banner "
            f"--disable-ansi-colors --details=tree --scan-classpath {_CLASSES}"
        )
        return Commands(bare=bare, check=in_folder(exercise.folder, bare))
