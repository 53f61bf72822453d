"""Run pytest as the user's command would, and report the real result of each test."""

import ast
import builtins
import importlib
import importlib.metadata
import os
import random
import sys
import unittest
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.config import default_plugins
from _pytest.runner import runtestprotocol
from _pytest.unittest import UnitTestCase

from assay.verify.drivers.audit_hook import (
    ExecutedFiles,
    TestProcesses,
    Workspace,
    living_processes,
    new_finders,
    project_path,
    watch_acts,
)
from assay.verify.drivers.canaries import METHODS, PLAIN, WITH_PYTEST, Names, other_than, same_as
from assay.verify.drivers.channel import Say
from assay.verify.drivers.integrity import (
    hide_memory,
    watch_dictionaries,
    watch_library,
    watch_runner,
)
from assay.verify.drivers.origins import Originals, SkipOrigins

_DETAIL_CHARS, _DETAILS_IN_FULL = 4000, 60
_AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
_LOOK_ALWAYS, _LOOK_EVERY = 200, 25
_CACHE_OPTIONS = (
    "--lf",
    "--last",
    "--ff",
    "--failed",
    "--nf",
    "--new",
    "--sw",
    "--step",
    "--cache",
)


class _ReportPlugin:
    """A pytest plugin that plants canaries and reports every test."""

    def __init__(self, order: "dict[str, Any]", say: Say) -> None:
        self.order = order
        self.say = say
        self.workspace = Workspace(order)
        self.skips = SkipOrigins(
            self.workspace, say, pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest
        )
        self.originals = Originals(order)
        self.library = watch_library(self.originals.files, order["path"].split(os.pathsep))
        self.differences: Callable[[], list[str]] = list
        self.touched: Callable[[], list[str]] = list
        self.canaries: set[pytest.Item] = set()
        self.reached: set[str] = set()
        self.states: dict[str, list[str]] = {}
        self.told = 0
        self.failures = 0
        self.plugins: set[str] | None = None
        builtins.__dict__.update(
            zip(order["words"], (self.reached.add, same_as, other_than), strict=True)
        )

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        # At this point pytest's own plugins are loaded, and no workspace file has been imported.
        self.differences, self.touched = watch_runner(), watch_dictionaries()
        for file in self.originals.files:
            self.originals.add(partial(_rewritten, file, early_config))

    def pytest_configure(self, config: pytest.Config) -> None:
        # A stop at the first failure would hide the other tests and the canaries.
        config.option.maxfail = 0
        # A file that cannot be imported would hide the tests of all others.
        config.option.continue_on_collection_errors = True
        if self.order["brief"]:
            config.option.tbstyle = "line"
        del os.environ[_AUTOLOAD]  # noqa: TID251 - an option of pytest, not a setting

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: "list[pytest.Item]"
    ) -> Generator[None, Any, Any]:
        outcome = yield
        if self.order["reverse"]:
            items.reverse()
        if self.order["canaries"] and items:
            _plant(items, self.canaries)
        self.plugins = {name for name, _ in session.config.pluginmanager.list_name_plugin()}
        self._look_around()
        return outcome

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, Any, Any]:
        report = yield
        if report.skipped:
            text = self._skip(report, [getattr(report.call.excinfo, "value", None)])
            self._tell_collection(report.nodeid, text, "skipped")
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell_collection(report.nodeid, str(report.longrepr), "error")

    def _tell_collection(self, node: str, text: str, status: str) -> None:
        self.say(["test", node, status, _last_line(text), _shorten(text), ""])
        self.told += 1

    def _skip(self, report: Any, errors: "list[Any]") -> str:
        """The reason for a skip, in one line that starts with the location that decided it."""
        match report.longrepr:
            case (str(path), _, str(reason)):
                pass
            case _:
                path, reason = report.location[0], f"expected to fail: {report.wasxfail}"
        place = self.skips.tell(*errors) or self.workspace.path(path)
        return " ".join(f"{place}: {reason}".split())

    def pytest_internalerror(self, excinfo: Any) -> None:
        self.say(["broken", excinfo.typename, str(excinfo.value)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Any) -> "bool | None":
        self.states[item.nodeid] = []
        self.reached.clear()
        if item not in self.canaries:
            self._recognise(item)
            return None
        # Not logged: the canary's failure must not appear in a summary or exit code.
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        caught = any(report.when == "call" and report.failed for report in reports)
        caught = caught and any(state.startswith("failed") for state in self.states[item.nodeid])
        self.say(["canary", item.nodeid, "caught" if caught else "missed"])
        self._look()
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        errors = [getattr(call.excinfo, "value", None)]
        report = yield
        errors.append(getattr(call.excinfo, "value", None))
        raised = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
        expected = hasattr(report, "wasxfail") or report.skipped
        # The raised exception takes precedence over the report.
        if (raised and not expected) or report.failed:
            state = "failed" if call.when == "call" else "error"
            text = str(report.longrepr or (call.excinfo and call.excinfo.value) or "")
            self.states.setdefault(item.nodeid, []).append(state + "\0" + text)
        elif expected and not report.passed:
            # A test with an xfail mark may fail anywhere.
            marked = raised and not isinstance(errors[-1], pytest.xfail.Exception)
            text = self._skip(report, [] if marked else errors)
            self.states.setdefault(item.nodeid, []).append("skipped\0" + text)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.states.get(report.nodeid):
            self.states.setdefault(report.nodeid, []).append("failed\0" + str(report.longrepr))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        states = self.states.pop(nodeid, [])
        worst = min(states, key=_badness) if states else "passed\0"
        status, _, text = worst.partition("\0")
        self.failures += status != "passed"
        detail = _shorten(text) if self.failures <= _DETAILS_IN_FULL else ""
        reached = ",".join(sorted(self.reached))
        self.say(["test", nodeid, status, _last_line(text), detail, reached])
        self.told += 1
        if self.told < _LOOK_ALWAYS or self.told % _LOOK_EVERY == 0:
            self._look()

    def _recognise(self, item: pytest.Item) -> None:
        # The bound instance does not exist before the test runs.
        function: Any = getattr(item, "_obj", None) or getattr(item, "obj", None)
        path = self.originals.replacement(function) if isinstance(item, pytest.Function) else None
        if path is not None:
            self.say(["replaced", item.nodeid, path])

    def _look_around(self) -> None:
        for name in (*self.library(), *self.touched()):
            self.say(["changed", name])
        for path in new_finders(self.workspace):
            self.say(["seen", "sys.meta_path", path])

    def _look(self) -> None:
        for name in self.differences():
            self.say(["patched", name])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._look()
        self._look_around()
        for item in session.items:
            if item not in self.canaries:
                self._recognise(item)
        now = {name for name, _ in session.config.pluginmanager.list_name_plugin()}
        for name in sorted(now - (self.plugins or now)):
            self.say(["patched", f"plugin {name}"])


def _badness(state: str) -> int:
    return ("failed", "error", "skipped").index(state.partition("\0")[0])


def _last_line(text: str) -> str:
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = errors[:1] or [line for line in text.splitlines() if line.strip()][-1:]
    return lines[0][:300] if lines else ""


def _shorten(text: str) -> str:
    if len(text) <= _DETAIL_CHARS:
        return text
    half = _DETAIL_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _plant(items: "list[pytest.Item]", canaries: "set[pytest.Item]") -> None:
    modules = list({item.getparent(pytest.Module): None for item in items})
    pick = random.SystemRandom()
    templates = (*pick.sample(PLAIN, 3), *pick.sample(WITH_PYTEST, 2), *pick.sample(METHODS, 2))
    for template in templates:
        module = pick.choice(modules)
        if module is None:
            continue
        make = _make_method if template in METHODS else _make_function
        canary = make(module, template)
        canaries.add(canary)
        # Among the module's own tests, because fixtures are set up once for all of them.
        places = [at for at, item in enumerate(items) if item.getparent(pytest.Module) is module]
        items.insert(pick.randrange(places[0], places[-1] + 2), canary)


def _compile(source: str, module: pytest.Module) -> "dict[str, Any]":
    tree = ast.parse(source)
    rewrite_asserts(tree, source.encode(), str(module.path), module.config)
    namespace = _scope_of(module)
    exec(compile(tree, str(module.path), "exec", dont_inherit=True), namespace)  # noqa: S102 - written above
    return namespace


def _rewritten(file: Path, config: pytest.Config) -> CodeType:
    """The code of a test file as pytest compiles it."""
    source = file.read_bytes()
    tree = ast.parse(source, filename=str(file))
    rewrite_asserts(tree, source, str(file), config)
    return compile(tree, str(file), "exec", dont_inherit=True)


def _scope_of(module: pytest.Module) -> "dict[str, Any]":
    scope: dict[str, Any] = {}
    scope.update(module.obj.__dict__)
    return scope


def _make_function(module: pytest.Module, template: str) -> pytest.Item:
    name, source = Names(set(_scope_of(module))).fill(template)
    made = _compile(source, module)[name]
    setattr(module.obj, name, made)
    kind: Any = pytest.Function
    return kind.from_parent(module, name=name, callobj=made)


def _make_method(module: pytest.Module, template: str) -> pytest.Item:
    name, source = Names(set(_scope_of(module))).fill(template)
    title = "Test" + "".join(word.title() for word in name.split("_")[1:])
    body = {name: _compile(source, module)[name], "__module__": module.obj.__name__}
    made = type(title, (unittest.TestCase,), body)
    setattr(module.obj, title, made)
    kind: Any = UnitTestCase
    parent = kind.from_parent(module, name=title, obj=made)
    return next(item for item in parent.collect() if isinstance(item, pytest.Item))


def _find_plugins(order: "dict[str, Any]") -> "tuple[list[Any], list[Any]]":
    """Return the entry points of installed plugins, and those of the project in the workspace."""
    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    refused = {"randomly", "langsmith_plugin"}
    refused |= {option[3:] for option in order["args"] if option.startswith("no:")}
    refused |= {option[5:] for option in order["args"] if option.startswith("-pno:")}
    if not _mentions("anyio", order):
        refused.add("anyio")
    entries = importlib.metadata.entry_points(group="pytest11")
    wanted = [entry for entry in entries if entry.name not in refused]
    own = [entry for entry in wanted if _is_of_the_project(entry)]
    hidden = _folders_after_pytest()
    return [entry for entry in wanted if entry not in own and _folder_of(entry) not in hidden], own


def _folders_after_pytest() -> "set[Path]":
    """Return the folders that the import system searches after the one that has pytest.

    If the project's environment has pytest, these belong to another environment, whose plugins may
    need other versions.
    """
    folders = [Path(folder) for folder in sys.path]
    try:
        return set(folders[folders.index(Path(pytest.__file__).parents[1]) + 1 :])
    except ValueError:
        return set()


def _folder_of(entry: "importlib.metadata.EntryPoint") -> "Path | None":
    return None if entry.dist is None else Path(str(entry.dist.locate_file("")))


def _is_of_the_project(entry: "importlib.metadata.EntryPoint") -> bool:
    """Whether Assay wrote the metadata, which it does for the project in the workspace only."""
    return entry.dist is not None and (entry.dist.read_text("INSTALLER") or "") == "assay\n"


def _mentions(word: str, order: "dict[str, Any]") -> bool:
    names = [*order["protected"], "conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg"]
    files = [Path(name) for name in names if Path(name).is_file()]
    return any(word in file.read_text(errors="replace") for file in files)


def run(order: "dict[str, Any]", say: Say) -> int:
    """Run the tests; returns the exit code that pytest would return."""
    installed, own = _find_plugins(order)
    # Before workspace files can take their place.
    plugins = [entry.load() for entry in installed]
    witness = _ReportPlugin(order, say)
    args = ["--rootdir", str(Path.cwd()), *order["args"]]
    if not any(option.startswith(_CACHE_OPTIONS) for option in order["args"]):
        args = ["-p", "no:cacheprovider", *args]
    os.environ[_AUTOLOAD] = "1"  # noqa: TID251 - an option of pytest, not a setting
    sys.argv = [str(Path(pytest.__file__).with_name("__main__.py")), *order["args"]]
    sys.path[:0] = project_path(order)
    hide_memory()
    executed = ExecutedFiles(order, say)
    watch_acts(order, say)
    processes = TestProcesses(order)
    plugins += [entry.load() for entry in own]
    main: Callable[..., Any] = pytest.main
    code = int(main(args, plugins=[witness, *plugins]))
    executed.report_others()
    for command in living_processes(processes):
        say(["left", command])
    say(["end", str(code), str(witness.told)])
    return code
