"""Requirements for Python source: it runs as `__main__`, as in a separate interpreter."""

from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.execution import Isolation, PythonCode, Reason
from assay.contracts.ports import Sandbox
from assay.selftest.checks import requirement
from assay.selftest.programs import describe, python, run_expecting, run_well


@requirement
async def an_empty_program_succeeds(sandbox: Sandbox) -> None:
    for source in (b"", b"\n", b"# nothing but a comment", b"'''a docstring'''"):
        result = await sandbox.run(PythonCode(source=source))

        assert result.succeeded, f"{source!r}: {describe(result)}"
        assert result.stdout_bytes == b"", f"{source!r}: {describe(result)}"


@requirement
async def source_is_decoded_as_python_decodes_a_file(sandbox: Sandbox) -> None:
    sources = {
        "utf-8": "print(ascii('é'))".encode(),
        "a byte order mark": b"\xef\xbb\xbf" + "print(ascii('é'))".encode(),
        "a declared encoding": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))",
        "windows line ends": b"if True:\r\n    print(ascii('\xc3\xa9'))\r\n",
    }
    for kind, source in sources.items():
        result = await sandbox.run(PythonCode(source=source))

        assert result.stdout == "'\\xe9'\n", f"{kind}: {describe(result)}"


@requirement
async def source_that_cannot_be_compiled_is_a_result(sandbox: Sandbox) -> None:
    sources = {
        "a syntax error": (b"x = 1\nif x\n    pass\n", "SyntaxError"),
        "broken indentation": (b"def f():\nreturn 1\n", "IndentationError"),
        "invalid utf-8": (b"print('\xff')\n", "SyntaxError"),
        "a null byte": (b"x = 1\0\n", "null byte"),
        "an unknown encoding": (b"# coding: no-such-encoding\n", "SyntaxError"),
        "too deep nesting": (b"(" * 5000 + b")" * 5000, "Error"),
    }
    for kind, (source, word) in sources.items():
        result = await sandbox.run(PythonCode(source=source))

        assert result.exit_code == 1, f"{kind}: {describe(result)}"
        assert result.reason is Reason.COMPLETED, f"{kind}: {describe(result)}"
        assert word in result.stderr, f"{kind}: {describe(result)}"


@requirement
async def a_syntax_error_names_file_and_line(sandbox: Sandbox) -> None:
    program = PythonCode(source=b"x = 1\nif x\n    pass\n", filename="job.py")
    result = await sandbox.run(program)

    assert 'File "job.py", line 2' in result.stderr, describe(result)
    assert "if x" in result.stderr, describe(result)


@requirement
async def a_traceback_shows_the_users_lines_and_no_others(sandbox: Sandbox) -> None:
    source = """
        def divide(number):
            return number / 0  # the guilty line

        divide(1)
    """
    result = await run_expecting(sandbox, replace(python(source), filename="job.py"), exit_code=1)
    frames = [line.strip() for line in result.stderr.splitlines() if line.startswith("  File ")]
    assert frames == [
        'File "job.py", line 5, in <module>',
        'File "job.py", line 3, in divide',
    ], describe(result)
    assert "return number / 0  # the guilty line" in result.stderr, describe(result)
    assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@requirement
async def exit_functions_run(sandbox: Sandbox) -> None:
    source = """
        import atexit, sys
        atexit.register(print, "last")
        atexit.register(print, "first")
        sys.exit(3)
    """
    await run_expecting(sandbox, python(source), exit_code=3, stdout="first\nlast\n")


@requirement
async def threads_are_waited_for(sandbox: Sandbox) -> None:
    source = """
        import threading, time
        def work():
            time.sleep(0.3)
            print("the thread finished")
        threading.Thread(target=work).start()
        print("main is done")
    """
    await run_expecting(sandbox, python(source), stdout="main is done\nthe thread finished\n")


@requirement
async def daemon_threads_are_not_waited_for(sandbox: Sandbox) -> None:
    source = """
        import threading, time
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        print("main is done")
    """
    await run_expecting(sandbox, python(source), succeeded=True, stdout="main is done\n")


@requirement
async def the_program_is_the_main_module(sandbox: Sandbox) -> None:
    source = """
        import sys
        assert sys.modules["__main__"].__dict__ is globals()
        assert __spec__ is None and __package__ is None
        if __name__ == "__main__":
            print("main")
    """
    await run_expecting(sandbox, python(source), stdout="main\n")


@requirement
async def the_main_module_contains_only_its_own_names(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        python("print([name for name in list(globals()) if name[:2] != '__'])")
    )

    assert result.stdout == "[]\n", describe(result)


@requirement
async def classes_of_the_program_can_be_pickled(sandbox: Sandbox) -> None:
    source = """
        import dataclasses, pickle
        @dataclasses.dataclass(frozen=True)
        class Point:
            x: int
        assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
        print(Point.__module__, Point(2))
    """
    await run_expecting(sandbox, python(source), stdout="__main__ Point(x=2)\n")


@requirement
async def the_program_can_show_its_own_source(sandbox: Sandbox) -> None:
    source = """
        import inspect
        def answer():
            return 42
        class Holder:
            held = 1
        print(inspect.getsource(answer).splitlines()[1].strip())
        print(inspect.getsource(Holder).splitlines()[1].strip())
    """
    await run_expecting(sandbox, python(source), stdout="return 42\nheld = 1\n")


@requirement
async def modules_of_the_working_directory_can_be_imported(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("greeting.py"), b"WORD = 'hello'")
    await sandbox.write_file(PurePosixPath("part/__init__.py"), b"from greeting import WORD")

    assert await run_well(sandbox, "import part; print(part.WORD)") == "hello\n"


@requirement
async def the_usual_tools_of_the_language_work(sandbox: Sandbox) -> None:
    sources = {
        "subprocess": "import subprocess; print(subprocess.getoutput('echo 1') == '1')",
        "threads": """
            from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(4) as pool:
                print(sum(pool.map(abs, range(-9, 0))) == 45)
        """,
        "the null device": "print(open('/dev/null', 'r+').write('gone') == 4)",
        "asyncio": """
            import asyncio
            async def main():
                child = await asyncio.create_subprocess_exec("true")
                return await child.wait() == 0
            print(asyncio.run(main()))
        """,
        "sqlite": """
            import sqlite3
            print(sqlite3.connect("db").execute("select 1").fetchone() == (1,))
        """,
        "time": "import datetime; print(datetime.datetime.now().year > 2020)",
        "paths": "import pathlib; print(pathlib.Path('a/b').resolve().name == 'b')",
        "user": "import getpass, os; print(bool(getpass.getuser()) and os.getuid() != 0)",
    }
    for tool, source in sources.items():
        result = await sandbox.run(python(source))

        assert result.stdout == "True\n", f"{tool}: {describe(result)}"
        assert result.stderr == "", f"{tool}: {describe(result)}"


@requirement(needs=Isolation.ISOLATED)
async def multiprocessing_works(sandbox: Sandbox) -> None:
    source = """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
    """
    await run_expecting(sandbox, python(source), stdout="[1, 2]\n")


@requirement
async def random_numbers_differ_between_executions(sandbox: Sandbox) -> None:
    source = """
        import os, random, secrets, tempfile, uuid
        print(random.random(), random.SystemRandom().random())
        print(os.urandom(8).hex(), secrets.token_hex(8), uuid.uuid4(), uuid.uuid1())
        print(os.path.basename(tempfile.mktemp()))
        try:
            import numpy
        except ImportError:
            print("no numpy")
        else:
            print(numpy.random.rand(), numpy.random.default_rng().random())
    """
    outputs = [await run_well(sandbox, source) for _ in range(4)]

    words = [word for output in outputs for word in output.replace("no numpy", "").split()]
    repeated = sorted({word for word in words if words.count(word) > 1})
    assert not repeated, f"two executions drew the same: {repeated}"


@requirement
async def no_interpreter_state_survives_an_execution(sandbox: Sandbox) -> None:
    spoil = """
        import builtins, json, os, resource, signal, sys, threading
        builtins.left_behind = json.left_behind = 1
        sys.path.append("/left/behind")
        os.environ["LEFT_BEHIND"] = "1"
        os.umask(0o077)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        sys.setrecursionlimit(200)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    """
    look = """
        import builtins, json, os, resource, signal, sys, threading
        print("left_behind" in vars(builtins), hasattr(json, "left_behind"))
        print("/left/behind" in sys.path, "LEFT_BEHIND" in os.environ, os.umask(0o022) == 0o077)
        print(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)
        print(signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 20, sys.getrecursionlimit() == 200)
        print(threading.active_count() != 1)
    """
    await run_well(sandbox, spoil)
    left = await run_well(sandbox, look)

    assert "True" not in left, f"something was left behind:\n{left}"


@requirement
async def signals_are_set_as_python_sets_them(sandbox: Sandbox) -> None:
    source = """
        import signal
        print(sorted(s.name for s in signal.Signals if signal.getsignal(s) == signal.SIG_IGN))
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """
    await run_expecting(sandbox, python(source), stdout="['SIGPIPE', 'SIGXFSZ']\nTrue\nset()\n")
