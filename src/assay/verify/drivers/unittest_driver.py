# ruff: noqa: N802 - methods that unittest calls, by its names
"""Run unittest as the user's command would, and report the real result of each test."""

import os
import random
import sys
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.verify.drivers.audit_hook import (
    ExecutedFiles,
    TestProcesses,
    Workspace,
    living_processes,
    new_finders,
    project_path,
    watch_acts,
)
from assay.verify.drivers.canaries import METHODS, Names, other_than, same_as
from assay.verify.drivers.channel import Say
from assay.verify.drivers.integrity import (
    hide_memory,
    watch_dictionaries,
    watch_library,
    watch_runner,
)
from assay.verify.drivers.origins import Originals, SkipOrigins

_DETAIL_CHARS = 4000
_RANKS = ("failed", "error", "skipped", "passed")


def _ignore(fields: Sequence[str]) -> None:
    del fields


def _only_reason(reason: str, error: Any) -> str:
    del error
    return reason


class _ReportPlugin(unittest.TextTestResult):
    """A test result class that also reports every test."""

    def __init__(self, stream: Any, descriptions: bool, verbosity: int) -> None:  # noqa: FBT001 - unittest's own signature
        super().__init__(stream, descriptions, verbosity)
        self.states: dict[str, tuple[str, str]] = {}
        self.canaries: set[unittest.TestCase] = set()
        self.say: Say = _ignore
        self.differences: Callable[[], list[str]] = list
        self.reached: set[str] = set()
        self.originals: Originals | None = None
        self.located: Callable[[str, Any], str] = _only_reason
        self.told = 0

    def note(self, test: Any, status: str, text: str = "") -> None:
        name = test.id()
        if name not in self.states or _RANKS.index(status) < _RANKS.index(self.states[name][0]):
            self.states[name] = (status, text)

    def startTest(self, test: Any) -> None:
        self.reached.clear()
        if test in self.canaries:
            return
        self.recognise(test)
        super().startTest(test)

    def stopTest(self, test: Any) -> None:
        if test in self.canaries:
            status, _ = self.states.pop(test.id(), ("passed", ""))
            self.say(["canary", test.id(), "caught" if status in {"failed", "error"} else "missed"])
        else:
            super().stopTest(test)
            self.tell(test.id())
        for name in self.differences():
            self.say(["patched", name])

    def recognise(self, test: Any) -> None:
        function = getattr(test, getattr(test, "_testMethodName", ""), None)
        path = self.originals.replacement(function) if self.originals and function else None
        if path is not None:
            self.say(["replaced", test.id(), path])

    def tell(self, name: str) -> None:
        status, text = self.states.pop(name, ("error", "it began and did not end"))
        lines = [line for line in text.splitlines() if line.strip()]
        reached = ",".join(sorted(self.reached))
        last = lines[-1][:300] if lines else ""
        self.say(["test", name, status, last, text[-_DETAIL_CHARS:], reached])
        self.told += 1

    def addSuccess(self, test: Any) -> None:
        self.note(test, "passed")
        if test not in self.canaries:
            super().addSuccess(test)

    def addFailure(self, test: Any, err: Any) -> None:
        self.note(test, "failed", _describe(err))
        if test not in self.canaries:
            super().addFailure(test, err)

    def addError(self, test: Any, err: Any) -> None:
        self.note(test, "error", _describe(err))
        if test in self.canaries:
            return
        super().addError(test, err)
        # `setUpClass` failures and failed imports have no started test.
        if not isinstance(test, unittest.TestCase):
            self.tell(test.id())

    def addSkip(self, test: Any, reason: str) -> None:
        # A skip decorator raises nothing.
        self.note(test, "skipped", self.located(reason, sys.exc_info()[1]))
        super().addSkip(test, reason)
        if not isinstance(test, unittest.TestCase):
            self.tell(test.id())

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note(test, "skipped", "expected to fail")
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note(test, "failed", "it was expected to fail, and did not")
        super().addUnexpectedSuccess(test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self.note(test, "failed" if failed else "error", f"{subtest}\n{_describe(err)}")
        super().addSubTest(test, subtest, err)


def _describe(err: Any) -> str:
    return "".join(traceback.format_exception(*err))


def _flatten(suite: Any) -> "Iterator[Any]":
    if isinstance(suite, unittest.TestSuite):
        for part in suite:
            yield from _flatten(part)
    else:
        yield suite


def _arranged(suite: Any, order: "dict[str, Any]", canaries: "set[Any]") -> unittest.TestSuite:
    tests = list(_flatten(suite))
    if order["reverse"]:
        tests.reverse()
    if order["canaries"] and tests:
        pick = random.SystemRandom()
        for template in pick.sample(METHODS, 5):
            neighbour = pick.choice(tests)
            canary = _make_canary(neighbour, template)
            canaries.add(canary)
            # Next to a class, not in it: class fixtures are set up once for all its tests.
            bounds = [
                at
                for at in range(len(tests) + 1)
                if at in {0, len(tests)} or type(tests[at - 1]) is not type(tests[at])
            ]
            tests.insert(pick.choice(bounds), canary)
    return unittest.TestSuite(tests)


def _make_canary(neighbour: Any, template: str) -> unittest.TestCase:
    module = sys.modules.get(type(neighbour).__module__)
    scope = {} if module is None else dict(vars(module))
    name, source = Names(set(scope)).fill(template)
    exec(compile(source, getattr(module, "__file__", None) or "<tests>", "exec"), scope)  # noqa: S102 - written by Assay
    title = "Test" + "".join(word.title() for word in name.split("_")[1:])
    body = {name: scope[name], "__module__": type(neighbour).__module__}
    return types.new_class(title, (unittest.TestCase,), {}, lambda space: space.update(body))(name)


def _locating(origins: SkipOrigins) -> "Callable[[str, Any], str]":
    """Return a function that prefixes a skip's reason with its location, in one line."""

    def located(reason: str, error: Any) -> str:
        place = origins.tell(error)
        return " ".join(f"{place}: {reason}".split()) if place else reason

    # For a file that is skipped as a whole, unittest keeps only the reason.
    loader = unittest.loader.__dict__
    make = loader["_make_skipped_test"]

    def make_skipped(name: str, error: Any, kind: Any) -> Any:
        return make(name, unittest.SkipTest(located(str(error), error)), kind)

    loader["_make_skipped_test"] = make_skipped
    return located


def run(order: "dict[str, Any]", say: Say) -> int:
    """Run the tests; returns the exit code that unittest would return."""
    reached: set[str] = set()
    words = zip(order["words"], (reached.add, same_as, other_than), strict=True)
    vars(sys.modules["builtins"]).update(words)
    originals, workspace = Originals(order), Workspace(order)
    located = _locating(SkipOrigins(workspace, say, unittest.SkipTest))
    library = watch_library(originals.files, order["path"].split(os.pathsep))
    differences, touched = watch_runner(), watch_dictionaries()
    witnesses: list[_ReportPlugin] = []

    class Runner(unittest.TextTestRunner):
        def _makeResult(self) -> _ReportPlugin:
            witness = _ReportPlugin(self.stream, self.descriptions, self.verbosity)
            witness.say, witness.reached = say, reached
            witness.differences, witness.originals = differences, originals
            witness.located = located
            witnesses.append(witness)
            return witness

        def run(self, test: Any) -> Any:
            planted: set[Any] = set()
            suite = _arranged(test, order, planted)
            make = self._makeResult

            def with_canaries() -> _ReportPlugin:
                witness = make()
                witness.canaries = planted
                return witness

            self._makeResult = with_canaries
            self.failfast = False
            return super().run(suite)

    sys.argv = ["python3 -m unittest", *order["args"]]
    sys.path[:0] = project_path(order)
    hide_memory()
    executed = ExecutedFiles(order, say)
    watch_acts(order, say)
    processes = TestProcesses(order)
    try:
        program = unittest.main(module=None, argv=list(sys.argv), testRunner=Runner, exit=False)
    except SystemExit as ending:
        # The solution ended the process during import, or an option is wrong.
        say(["broken", "SystemExit", str(ending.code)])
        say(["end", str(ending.code), str(sum(witness.told for witness in witnesses))])
        return 1
    for name in differences():
        say(["patched", name])
    for name in (*library(), *touched()):
        say(["changed", name])
    for path in new_finders(workspace):
        say(["seen", "sys.meta_path", path])
    code = 0 if program.result.wasSuccessful() else 1
    if not program.result.testsRun and not witnesses[0].told:
        code = 5
    executed.report_others()
    for command in living_processes(processes):
        say(["left", command])
    say(["end", str(code), str(sum(witness.told for witness in witnesses))])
    return code
