"""Suspicious names in a solution, as data: calls, variables and attributes."""

from typing import Final

from assay.contracts.verdict import Severity, TamperKind

RUNNERS: Final = frozenset({"pytest", "_pytest", "unittest", "pluggy", "nose"})
TEST_VARIABLES: Final = ("PYTEST", "UNITTEST", "TOX_", "ASSAY", "CI")
REPORTS: Final = (
    "junit",
    "report.xml",
    "results.xml",
    ".pytest_cache",
    "lastfailed",
    "conftest.py",
)

Say = tuple[TamperKind, Severity, str]
CALLS: Final[dict[str, Say]] = {
    "os._exit": (TamperKind.EARLY_EXIT, "forgery", "ends the process without a word"),
    "os.abort": (TamperKind.EARLY_EXIT, "doubt", "ends the process without a word"),
    "os.kill": (TamperKind.EARLY_EXIT, "doubt", "sends signals"),
    "os.killpg": (TamperKind.EARLY_EXIT, "doubt", "sends signals"),
    "signal.raise_signal": (TamperKind.EARLY_EXIT, "doubt", "sends signals"),
    "gc.get_objects": (TamperKind.PATCHED_RUNNER, "forgery", "looks through all objects in memory"),
    "gc.get_referrers": (TamperKind.PATCHED_RUNNER, "forgery", "looks for who holds an object"),
    "gc.get_referents": (TamperKind.PATCHED_RUNNER, "doubt", "looks for what an object holds"),
    "sys._getframe": (TamperKind.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "sys._current_frames": (TamperKind.DETECTS_VERIFIER, "forgery", "looks at who is running"),
    "inspect.stack": (TamperKind.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "inspect.currentframe": (TamperKind.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "sys.settrace": (TamperKind.PATCHED_RUNNER, "forgery", "watches every step of the process"),
    "sys.setprofile": (TamperKind.PATCHED_RUNNER, "forgery", "watches every call of the process"),
    "sys.addaudithook": (TamperKind.PATCHED_RUNNER, "forgery", "watches the process"),
    "threading.settrace": (
        TamperKind.PATCHED_RUNNER,
        "forgery",
        "watches every step of the process",
    ),
    "os.fork": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a process beside the tests"),
    "os.setsid": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "leaves the session of its process"),
    "os.dup2": (TamperKind.FORGED_REPORT, "doubt", "redirects what the process writes"),
    "pytest.skip": (TamperKind.TESTS_SKIPPED, "forgery", "skips the test that calls it"),
    "pytest.exit": (TamperKind.EARLY_EXIT, "forgery", "ends the run of the tests"),
    "pytest.xfail": (TamperKind.TESTS_SKIPPED, "forgery", "excuses the test that calls it"),
    **dict.fromkeys(
        # The exceptions that those calls raise; raising them directly needs no call.
        (
            *("pytest.skip.Exception", "pytest.xfail.Exception"),
            *("_pytest.outcomes.skip", "_pytest.outcomes.skip.Exception"),
            *("_pytest.outcomes.xfail", "_pytest.outcomes.xfail.Exception"),
            *("_pytest.outcomes.Skipped", "_pytest.outcomes.XFailed"),
            *("unittest.SkipTest", "unittest.case.SkipTest"),
        ),
        (TamperKind.TESTS_SKIPPED, "forgery", "skips the test that calls it"),
    ),
}
AT_IMPORT: Final[dict[str, Say]] = {
    "atexit.register": (
        TamperKind.CHANGED_WHILE_TESTED,
        "doubt",
        "leaves something to do at the end",
    ),
    "subprocess.Popen": (
        TamperKind.CHANGED_WHILE_TESTED,
        "doubt",
        "starts a program when imported",
    ),
    "subprocess.run": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "subprocess.call": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.system": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.popen": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.spawnv": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "threading.Thread": (TamperKind.CHANGED_WHILE_TESTED, "doubt", "starts a thread when imported"),
    "multiprocessing.Process": (
        TamperKind.CHANGED_WHILE_TESTED,
        "doubt",
        "starts a process on import",
    ),
    "sys.exit": (TamperKind.EARLY_EXIT, "forgery", "ends the process when imported"),
    "exit": (TamperKind.EARLY_EXIT, "forgery", "ends the process when imported"),
    "quit": (TamperKind.EARLY_EXIT, "forgery", "ends the process when imported"),
}
ACTS: Final[dict[str, tuple[TamperKind, str]]] = {
    # Audit events of the interpreter, independent of the names in the source.
    **dict.fromkeys(
        ("exec", "compile", "marshal.loads", "marshal.load", "code.__new__", "function.__new__"),
        (TamperKind.HIDDEN_CODE, "makes code from what cannot be read"),
    ),
    **dict.fromkeys(
        ("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
        (TamperKind.PATCHED_RUNNER, "looks through memory"),
    ),
    **dict.fromkeys(
        ("sys.settrace", "sys.setprofile", "sys.addaudithook"),
        (TamperKind.PATCHED_RUNNER, "watches the process"),
    ),
    **dict.fromkeys(
        ("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
        (TamperKind.DETECTS_VERIFIER, "looks at who is calling"),
    ),
    **dict.fromkeys(
        (
            "__code__",
            "__defaults__",
            "__kwdefaults__",
            "tb_frame",
            "gi_frame",
            "cr_frame",
            "ag_frame",
            "f_code",
        ),
        (TamperKind.DETECTS_VERIFIER, "reaches into what runs it"),
    ),
    "pickle.find_class": (TamperKind.HIDDEN_CODE, "unpickles what can run code"),
    "open": (TamperKind.READS_TESTS, "opens the tests, or what the system knows of their process,"),
    "sys.meta_path": (TamperKind.SHADOWED_RUNNER, "decides what an import gives"),
}
OTHER_ACT: Final = (TamperKind.HIDDEN_CODE, "goes around the interpreter")
CODE: Final = frozenset({".py", ".so", ".pyd", ".zip", ".egg", ".whl", ".pyz"})
LOADERS: Final = frozenset(
    [
        "marshal.loads",
        "marshal.load",
        "types.CodeType",
        "types.FunctionType",
        "runpy.run_path",
        "runpy.run_module",
        "importlib.util.spec_from_file_location",
        "importlib.machinery.SourceFileLoader",
        "importlib.machinery.ExtensionFileLoader",
        "importlib.util.module_from_spec",
        "zipimport.zipimporter",
        "code.InteractiveInterpreter",
        "operator.attrgetter",
    ]
)
RUNNING: Final = frozenset({"eval", "exec", "compile", "builtins.exec", "builtins.eval"})
INNER: Final = frozenset(
    {
        *("__globals__", "__subclasses__", "__closure__", "__code__", "f_globals", "f_locals"),
        *("f_back", "tb_frame", "gi_frame", "cr_frame"),
    }
)
# There is no good reason to assemble one of these names from pieces.
SECRET: Final = INNER | frozenset(
    {
        *("modules", "meta_path", "settrace", "_getframe", "get_objects", "get_referrers", "_exit"),
        *("pytest", "_pytest", "unittest", "ctypes", "exec", "eval", "__import__", "__builtins__"),
        *("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "conftest"),
    }
)
TOLD_BY_PYTEST: Final = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
EVERYONES: Final = frozenset({"builtins", "__builtins__", "builtins.__dict__", "sys.modules"})
STREAMS: Final = frozenset(
    {"stdout", "stderr", "excepthook", "displayhook", "meta_path", "path_hooks", "modules"}
)
VISIBLE: Final = 3
NOW: Final = ("datetime.now", "datetime.utcnow", "date.today", "datetime.today", "time.time")
