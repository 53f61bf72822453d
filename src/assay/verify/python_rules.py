"""What has no business in a solution, by name: calls, variables and attributes, as data."""

from typing import Final

from assay.contracts.verdict import Severity, Trick

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

Say = tuple[Trick, Severity, str]
CALLS: Final[dict[str, Say]] = {
    "os._exit": (Trick.EARLY_EXIT, "forgery", "ends the process without a word"),
    "os.abort": (Trick.EARLY_EXIT, "doubt", "ends the process without a word"),
    "os.kill": (Trick.EARLY_EXIT, "doubt", "sends signals"),
    "os.killpg": (Trick.EARLY_EXIT, "doubt", "sends signals"),
    "signal.raise_signal": (Trick.EARLY_EXIT, "doubt", "sends signals"),
    "gc.get_objects": (Trick.PATCHED_RUNNER, "forgery", "looks through all objects in memory"),
    "gc.get_referrers": (Trick.PATCHED_RUNNER, "forgery", "looks for who holds an object"),
    "gc.get_referents": (Trick.PATCHED_RUNNER, "doubt", "looks for what an object holds"),
    "sys._getframe": (Trick.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "sys._current_frames": (Trick.DETECTS_VERIFIER, "forgery", "looks at who is running"),
    "inspect.stack": (Trick.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "inspect.currentframe": (Trick.DETECTS_VERIFIER, "doubt", "looks at who is calling"),
    "sys.settrace": (Trick.PATCHED_RUNNER, "forgery", "watches every step of the process"),
    "sys.setprofile": (Trick.PATCHED_RUNNER, "forgery", "watches every call of the process"),
    "sys.addaudithook": (Trick.PATCHED_RUNNER, "forgery", "watches the process"),
    "threading.settrace": (Trick.PATCHED_RUNNER, "forgery", "watches every step of the process"),
    "os.fork": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a process beside the tests"),
    "os.setsid": (Trick.CHANGED_WHILE_TESTED, "doubt", "leaves the session of its process"),
    "os.dup2": (Trick.FORGED_REPORT, "doubt", "redirects what the process writes"),
    "pytest.skip": (Trick.TESTS_SKIPPED, "forgery", "skips the test that calls it"),
    "pytest.exit": (Trick.EARLY_EXIT, "forgery", "ends the run of the tests"),
    "pytest.xfail": (Trick.TESTS_SKIPPED, "forgery", "excuses the test that calls it"),
    **dict.fromkeys(
        # What those raise; raised by name, they need no call.
        (
            *("pytest.skip.Exception", "pytest.xfail.Exception"),
            *("_pytest.outcomes.skip", "_pytest.outcomes.skip.Exception"),
            *("_pytest.outcomes.xfail", "_pytest.outcomes.xfail.Exception"),
            *("_pytest.outcomes.Skipped", "_pytest.outcomes.XFailed"),
            *("unittest.SkipTest", "unittest.case.SkipTest"),
        ),
        (Trick.TESTS_SKIPPED, "forgery", "skips the test that calls it"),
    ),
}
AT_IMPORT: Final[dict[str, Say]] = {
    "atexit.register": (Trick.CHANGED_WHILE_TESTED, "doubt", "leaves something to do at the end"),
    "subprocess.Popen": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "subprocess.run": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "subprocess.call": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.system": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.popen": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "os.spawnv": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a program when imported"),
    "threading.Thread": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a thread when imported"),
    "multiprocessing.Process": (Trick.CHANGED_WHILE_TESTED, "doubt", "starts a process on import"),
    "sys.exit": (Trick.EARLY_EXIT, "forgery", "ends the process when imported"),
    "exit": (Trick.EARLY_EXIT, "forgery", "ends the process when imported"),
    "quit": (Trick.EARLY_EXIT, "forgery", "ends the process when imported"),
}
ACTS: Final[dict[str, tuple[Trick, str]]] = {
    # What the interpreter tells of, whatever it was called in the source.
    **dict.fromkeys(
        ("exec", "compile", "marshal.loads", "marshal.load", "code.__new__", "function.__new__"),
        (Trick.HIDDEN_CODE, "makes code from what cannot be read"),
    ),
    **dict.fromkeys(
        ("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
        (Trick.PATCHED_RUNNER, "looks through memory"),
    ),
    **dict.fromkeys(
        ("sys.settrace", "sys.setprofile", "sys.addaudithook"),
        (Trick.PATCHED_RUNNER, "watches the process"),
    ),
    **dict.fromkeys(
        ("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
        (Trick.DETECTS_VERIFIER, "looks at who is calling"),
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
        (Trick.DETECTS_VERIFIER, "reaches into what runs it"),
    ),
    "pickle.find_class": (Trick.HIDDEN_CODE, "unpickles what can run code"),
    "open": (Trick.READS_TESTS, "opens the tests, or what the system knows of their process,"),
    "sys.meta_path": (Trick.SHADOWED_RUNNER, "decides what an import gives"),
}
OTHER_ACT: Final = (Trick.HIDDEN_CODE, "goes around the interpreter")
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
# Nobody has a good reason to put one of these together from pieces.
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
