"""Run Python tests in a sandbox with Assay's driver, and read its sealed report.

The driver takes its functions before it imports any workspace file. Its report uses the real
standard output, which the program under test does not get. Output of that program goes to standard
error.
"""

import json
import posixpath
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.execution import Command, ExecutionResult, OutputChunk, Reason
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Finding, TamperKind, TestResult, TestStatus
from assay.text.formatting import count, trim
from assay.verify import python_rules
from assay.verify.inverted_tests import Words
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import explain_ending
from assay.verify.spec import CheckSpec, Execution, Observation

_PACKAGE: Final = "assay.verify.drivers"
_COMMON: Final = (
    "channel",
    "integrity",
    "canaries",
    "leftover_processes",
    "perturb_values",
    "audit_hook",
    "source_check",
    "memory_access",
    "skip_origin",
    "executed",
)
# The driver modules are in `sys.modules` only while they import each other.
_BOOT: Final = """
def boot():
    import json, os, sys, types
    order = json.loads(sys.stdin.buffer.read())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    # Said by the sandbox; the usual variable counts for nothing in an isolated interpreter.
    if "ASSAY_PACKAGES" in os.environ:
        sys.path.insert(0, os.environ["ASSAY_PACKAGES"])
    modules = {}
    for name, source in order.pop("modules"):
        modules[name] = sys.modules[name] = module = types.ModuleType(name)
        exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
    say = modules[order.pop("channel")].open_channel(bytes.fromhex(order.pop("key")))
    for name in modules:
        del sys.modules[name]
    del globals()["boot"]
    run = module.run
    del modules, module, name, source
    sys.exit(run(order, say))
boot()
"""
_USAGE_ERROR: Final = 4
_NO_TESTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Run conditions that correct code does not depend on."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    reverse: bool = False
    """Run the tests in reverse order."""
    brief: bool = False
    """Leave out failure details, which are not shown for this run."""
    words: Words = field(default_factory=Words)
    """The names of the functions that rewritten tests call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRun:
    """An observation, and the data that only rewritten tests report."""

    observation: Observation
    reached: Mapping[str, frozenset[str]]
    """By test: the numbers of the assertions that were reached."""
    complete: bool
    """Whether the driver ran to its end."""


@dataclass(slots=True)
class _Account:
    """The content of a report while it is read."""

    tests: list[TestResult] = field(default_factory=list[TestResult])
    reached: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    planted: int = 0
    missed: list[str] = field(default_factory=list[str])
    patched: dict[str, None] = field(default_factory=dict[str, None])
    changed: dict[str, None] = field(default_factory=dict[str, None])
    seen: dict[Finding, None] = field(default_factory=dict[Finding, None])
    left: list[str] = field(default_factory=list[str])
    ran: list[PurePosixPath] = field(default_factory=list[PurePosixPath])
    elsewhere: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    others: set[PurePosixPath] = field(default_factory=set[PurePosixPath])
    """Changed files whose modules came from elsewhere."""
    has_children: bool = False
    broken: tuple[str, str] | None = None
    ended: int | None = None
    """The exit code that the driver reported; None if it reported none."""
    forged: bool = False


async def run_python(
    driver: str,
    order: CheckSpec,
    sandbox: Sandbox,
    *,
    conditions: Conditions | None = None,
    on_output: OnOutput = ignore_output,
) -> PythonRun:
    """Run a driver of `assay.verify.drivers` to its end.

    Raises:
        SandboxUnavailableError: If the sandbox is gone.
    """
    conditions = conditions or Conditions()
    invocation = read_invocation(order.argv)
    key = secrets.token_bytes(32)
    payload = {
        "modules": _sources(f"{driver}_driver"),
        "channel": f"{_PACKAGE}.channel",
        "key": key.hex(),
        "args": list(invocation.arguments),
        "path": invocation.env.get("PYTHONPATH", ""),
        "protected": [posixpath.relpath(path, invocation.cwd) for path in order.protected],
        "canaries": order.canaries,
        "reverse": conditions.reverse,
        "brief": conditions.brief,
        "words": [conditions.words.tell, conditions.words.keep, conditions.words.other],
        "root": posixpath.relpath(".", invocation.cwd),
        "changed": [str(path) for path in order.changed],
        "removed": [str(path) for path in order.removed],
    }

    def show(chunk: OutputChunk) -> None:
        # The report is internal; the output of the tests comes on the other stream.
        if chunk.stream == "stderr":
            on_output(OutputChunk(stream="stdout", data=chunk.data))

    command = Command(
        argv=("python3", "-I", "-B", "-c", _BOOT),
        stdin=json.dumps(payload).encode(),
        env={**conditions.env, **invocation.env},
        cwd=invocation.cwd,
        timeout_s=order.timeout_s,
    )
    result = await sandbox.run(command, on_output=show)
    account = _read_report(result.stdout_bytes, key)
    return PythonRun(
        observation=_observe(driver, order, result, account),
        reached=account.reached,
        complete=account.ended is not None,
    )


@cache
def _sources(driver: str) -> tuple[tuple[str, str], ...]:
    folder = resources.files(_PACKAGE)
    return tuple(
        (f"{_PACKAGE}.{name}", folder.joinpath(f"{name}.py").read_text())
        for name in (*_COMMON, driver)
    )


def _read_report(report: bytes, key: bytes) -> _Account:
    account = _Account()
    lines = report.split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        seal, _, body = line.partition(b" ")
        expected = sha256(key + sha256(key + body).digest()).hexdigest()[:32]
        place, _, text = body.partition(b" ")
        genuine = secrets.compare_digest(seal, expected.encode()) and place == b"%d" % number
        if not genuine or account.ended is not None:
            # A line that was cut off by the end of the process is not a forgery.
            account.forged = account.ended is not None or number + 1 < len(lines)
            break
        _take(account, json.loads(text))
        key = sha256(key + b"next").digest()
    return account


def _take(account: _Account, fields: list[str]) -> None:
    match fields:
        case ["test", name, status, message, detail, reached]:
            test = TestResult(id=name, status=TestStatus(status), message=message, detail=detail)
            # pytest reports a file with a failed import once for each way to it.
            if test.status is not TestStatus.ERROR or test not in account.tests:
                account.tests.append(test)
            account.reached[name] = frozenset(reached.split(",")) - {""}
        case ["canary", name, outcome]:
            account.planted += 1
            if outcome != "caught":
                account.missed.append(name)
        case ["broken", kind, message]:
            account.broken = (kind, message)
        case ["end", code, _]:
            account.ended = int(code) if code.lstrip("-").isdigit() else 0
        case _:
            _take_oddity(account, fields)


def _take_oddity(account: _Account, fields: list[str]) -> None:
    match fields:
        case ["patched", name]:
            account.patched[name] = None
        case ["changed", name]:
            account.changed[name] = None
        case ["seen", act, path]:
            account.seen[_act(act, PurePosixPath(path))] = None
        case ["skips", path]:
            account.seen[_skips(path)] = None
        case ["replaced", name, path]:
            account.seen[_replaced(name, path)] = None
        case ["left", command]:
            account.left.append(command)
        case _:
            _take_execution(account, fields)


def _take_execution(account: _Account, fields: list[str]) -> None:
    match fields:
        case ["ran", path]:
            account.ran.append(PurePosixPath(path))
        case ["elsewhere", name, file, path]:
            account.elsewhere.append((name, file))
            account.others.add(PurePosixPath(path))
        case ["child"]:
            account.has_children = True
        case _:
            account.forged = True


def _observe(
    driver: str, order: CheckSpec, result: ExecutionResult, account: _Account
) -> Observation:
    findings = _findings(order, result, account)
    explanation = _explanation(order, result, account)
    forgeries = [finding for finding in findings if finding.severity == "forgery"]
    if not explanation and forgeries:
        explanation = forgeries[0].explanation
    report = CheckReport(
        command=order.command,
        runner=driver,
        passed=not explanation,
        tests=tuple(account.tests),
        exit_code=result.exit_code,
        explanation=explanation,
        output=trim(result.stderr),
        canaries_planted=account.planted,
        canaries_caught=account.planted - len(account.missed),
        duration_s=result.duration_s,
    )
    execution = Execution(
        files=tuple(account.ran),
        elsewhere=tuple(account.elsewhere),
        replaced=tuple(path for path in (*order.removed, *account.ran) if path in account.others),
        has_children=account.has_children,
    )
    return Observation(
        report=report,
        findings=findings,
        seen=tuple(account.seen),
        execution=execution if order.changed or order.removed else None,
    )


def _explanation(order: CheckSpec, result: ExecutionResult, account: _Account) -> str:
    bad = [t for t in account.tests if t.status in {TestStatus.FAILED, TestStatus.ERROR}]
    if bad:
        return f"{len(bad)} of {count(len(account.tests), 'test')} did not pass"
    if result.reason is not Reason.COMPLETED:
        return explain_ending(result)
    if account.ended is None and result.stdout_dropped_bytes:
        return "its report is longer than the sandbox keeps"
    if account.ended is None:
        return f"the process ended with exit code {result.exit_code} before it reported"
    return _explain_report(order, result, account)


def _explain_report(order: CheckSpec, result: ExecutionResult, account: _Account) -> str:
    if account.broken:
        return f"the runner stopped: {account.broken[0]}: {account.broken[1]}"
    if account.ended == _USAGE_ERROR and not account.tests:
        return "the command has a wrong option or path: " + _last_line(result.stderr)
    if account.ended == _NO_TESTS or not account.tests:
        return "it found no tests"
    if not any(test.passed for test in account.tests):
        return "all tests were skipped"
    if order.canaries and not account.planted:
        return "no test that must fail could be planted"
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _findings(order: CheckSpec, result: ExecutionResult, account: _Account) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    if account.forged:
        findings.append(_forgery(TamperKind.FORGED_REPORT, "something else wrote into the report"))
    by_itself = result.reason in {Reason.COMPLETED, Reason.SIGNALLED}
    cut_short = account.ended is None and by_itself and not result.stdout_dropped_bytes
    ended_import = any(_is_exit(test) for test in account.tests)
    broken_off = account.broken is not None and account.broken[0] in {"SystemExit", "Exit"}
    if cut_short or broken_off or ended_import:
        findings.append(_early_exit(order, result, account))
    if account.patched:
        names = ", ".join(list(account.patched)[:5])
        said = f"the test runner was changed in memory: {names}"
        findings.append(_forgery(TamperKind.PATCHED_RUNNER, said))
    if account.missed:
        said = f"{len(account.missed)} of {account.planted} tests that must fail passed"
        findings.append(_forgery(TamperKind.PATCHED_RUNNER, said))
    if account.changed:
        names = ", ".join(list(account.changed)[:5])
        said = f"what the tests use was changed in memory: {names}"
        findings.append(Finding(kind=TamperKind.PATCHED_RUNNER, severity="doubt", explanation=said))
    if account.left:
        said = f"a process was left running when the tests had ended: {account.left[0]}"
        findings.append(
            Finding(kind=TamperKind.CHANGED_WHILE_TESTED, severity="doubt", explanation=said)
        )
    return tuple(findings)


def _act(act: str, path: PurePosixPath) -> Finding:
    kind, said = python_rules.ACTS.get(act, python_rules.OTHER_ACT)
    explanation = f"{path} {said} when it runs: {act}"
    return Finding(kind=kind, severity="doubt", explanation=explanation, path=path)


def _skips(path: str) -> Finding:
    return Finding(
        kind=TamperKind.TESTS_SKIPPED,
        severity="forgery",
        explanation=f"{path or 'something that hides itself'} skips the test that calls it",
        path=PurePosixPath(path) if path else None,
    )


def _replaced(name: str, path: str) -> Finding:
    whose = f": it is {path} that is run" if path else ""
    said = f"{name} is not what stands in its file{whose}"
    if path and (name.startswith(f"{path}::") or f".{PurePosixPath(path).stem}." in f".{name}"):
        said = f"{name} is none of the given tests: it stands in {path}, which the agent may change"
    return Finding(
        kind=TamperKind.TESTS_CHANGED,
        severity="doubt",
        explanation=said,
        path=PurePosixPath(path) if path else None,
    )


def _is_exit(test: TestResult) -> bool:
    """Whether a file ended the process during its import; unittest continues after that."""
    return "_FailedTest" in test.id and test.message.partition(":")[0] == "SystemExit"


def _early_exit(order: CheckSpec, result: ExecutionResult, account: _Account) -> Finding:
    code = result.exit_code if account.broken is None else account.broken[1]
    exits = [test.message.partition(": ")[2] for test in account.tests if _is_exit(test)]
    code = exits[0] if exits else code
    ending = f"signal {result.signal}" if result.signal else f"exit code {code}"
    done = f"{len(account.tests)} tests had been reported" if account.tests else "no test had run"
    said = f"`{order.command}` was ended from within, with {ending}, when {done}"
    # An exit with an error does not claim success.
    claims = not result.signal and str(code) in {"0", "None", ""}
    return Finding(
        kind=TamperKind.EARLY_EXIT, severity="forgery" if claims else "doubt", explanation=said
    )


def _forgery(kind: TamperKind, explanation: str) -> Finding:
    return Finding(kind=kind, severity="forgery", explanation=explanation)
