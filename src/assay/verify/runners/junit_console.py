"""Compile Java and run its tests with JUnit's console launcher and with canaries.

The user gives the chain: `javac … && java … ConsoleLauncher …`. The launcher writes its reports at
the end, in the process that also runs the tested code. That code could write forged reports, which
would need the canaries; it could find those by reading test files. That is not prevented, but its
signs in the source are reported as a doubt.
"""

import re
import shlex
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.execution import WORKSPACE, Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade, TestResult
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.report_checks import RawReport, conclude, with_doubt
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.junit import read_junit

_REPORTS: Final = "/tmp/junit-reports"
_READ: Final = f"cat {_REPORTS}/*.xml"
_LAUNCHER: Final = re.compile(
    r"org\.junit\.platform\.console\.ConsoleLauncher|junit-platform-console-standalone[\w.-]*\.jar"
)
_PROGRAMS: Final = frozenset({"cd", "export", "mkdir", "javac", "java"})
_MORE_THAN_A_CHAIN: Final = re.compile(r"[|;<>$`()]|(?<!&)&(?!&)|&&&")
_DOCUMENT: Final = re.compile(rb"(?=<\?xml )")
_TEST: Final = re.compile(r"@Test\b[^{;]*?\bvoid\s+(?P<name>\w+)\s*\(", re.DOTALL)
_CLASS: Final = re.compile(r"^(?:public\s+)?(?:final\s+)?class\s+(?P<name>\w+)", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package\s+(?P<name>[\w.]+)\s*;", re.MULTILINE)
_UNSURE: Final = re.compile(r"@Disabled|@Nested|@Enabled|@Tag|\babstract\s+class\b|/\*(?!\*)")
_ACTS: Final = (
    'throw new AssertionError("planted");',
    "org.junit.jupiter.api.Assertions.assertEquals(1, 2);",
    "org.junit.jupiter.api.Assertions.assertTrue(false);",
    'org.junit.jupiter.api.Assertions.fail("planted");',
)
_FLUENT: Final = "org.assertj.core.api.Assertions.assertThat(1).isEqualTo(2);"


class JUnitConsoleRunner:
    """JUnit 5 without a build tool."""

    name = "junit"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "**/junit-platform.properties",
        "**/META-INF/services/**",
        "**/*.gradle",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return argv[:2] == ("bash", "-c") and _is_chain(argv[-1])

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        found: set[str] = set()
        for path in _test_files(order):
            found.update(_tests_in(tree.text(path) or ""))
        return frozenset(found)

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        plan = Plan()
        if order.canaries:
            plan = _plan(order, await read_texts(sandbox, _test_files(order)))
        await sandbox.run(Command(argv=("rm", "-rf", _REPORTS)))
        async with planted(sandbox, plan) as findings:
            result = await sandbox.run(
                Command(
                    argv=("bash", "-c", f"{order.argv[-1]} --reports-dir={_REPORTS}"),
                    timeout_s=order.timeout_s,
                ),
                on_output=on_output,
            )
        # The next run would find compiled canaries.
        classes = " -o ".join(f"-name '{path.stem}*.class'" for path in plan.files)
        if classes:
            remove = f"find {WORKSPACE} /tmp \\( {classes} \\) -delete"
            await sandbox.run(Command(argv=("sh", "-c", remove)))
        kept = bytearray()
        await sandbox.run(
            Command(argv=("sh", "-c", _READ)), on_output=lambda chunk: kept.extend(chunk.data)
        )
        tests: list[TestResult] = []
        problem = ""
        for document in _DOCUMENT.split(bytes(kept)):
            if document.strip().startswith(b"<?xml"):
                more, wrong = read_junit(document)
                tests.extend(more)
                problem = problem or wrong
        account = RawReport(
            tests=tuple(tests), canaries=plan.names, problem=problem, findings=tuple(findings)
        )
        return with_doubt(order, conclude(order, self.name, result, account))


def _is_chain(command: str) -> bool:
    if _MORE_THAN_A_CHAIN.search(command):
        return False
    try:
        steps = [shlex.split(step) for step in command.split("&&")]
    except ValueError:
        return False
    programs = [step[0] for step in steps if step]
    return (
        len(programs) == len(steps)
        and _PROGRAMS.issuperset(programs)
        and programs[-1] == "java"
        and bool(_LAUNCHER.search(" ".join(steps[-1])))
    )


def _test_files(order: CheckSpec) -> tuple[PurePosixPath, ...]:
    return tuple(path for path in order.protected if path.suffix == ".java")


def _tests_in(text: str) -> frozenset[str]:
    """Return the IDs of tests that a file certainly has; none for unusual layouts."""
    classes = _CLASS.findall(text)
    if len(classes) != 1 or _UNSURE.search(text):
        return frozenset()
    package = _PACKAGE.search(text)
    name = f"{package['name']}.{classes[0]}" if package else classes[0]
    return frozenset(f"{name}::{test}()" for test in _TEST.findall(text))


def _plan(order: CheckSpec, texts: dict[PurePosixPath, str]) -> Plan:
    """Plan a class of canaries next to the tests that the command compiles by a glob."""
    files: dict[PurePosixPath, bytes] = {}
    names: set[str] = set()
    beside = {path.parent: text for path, text in texts.items() if "@Test" in text}
    for folder, text in beside.items():
        if f"{folder}/*.java" not in order.argv[-1]:
            continue
        acts = (*_ACTS, _FLUENT) if "org.assertj" in text else _ACTS
        own = {new_canary_name(): act for act in acts}
        class_name = f"C{new_canary_name().replace('_', '')}Test"
        tests = "\n".join(
            f"  @org.junit.jupiter.api.Test void {name}() {{ {act} }}" for name, act in own.items()
        )
        package = _PACKAGE.search(text)
        head = f"package {package['name']};\n" if package else ""
        source = f"{head}class {class_name} {{\n{tests}\n}}\n"
        files[folder / f"{class_name}.java"] = source.encode()
        names.update(own)
    return Plan(files=files, names=frozenset(names))
