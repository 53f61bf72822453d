"""Reading a proposal finds what has no business in a solution, and lets ordinary programs be."""

from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.verdict import Finding, TamperKind
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.static_analysis import attributable, read_proposal

PATH = PurePosixPath("calc.py")
TESTS = (PurePosixPath("tests/test_calc.py"),)


def read(source: str, before: str = "") -> tuple[Finding, ...]:
    trees = [Tree(files={PATH: TreeFile(dedent(text).encode())}) for text in (before, source)]
    return read_proposal(trees[0], trees[1], TESTS)


SUSPICIOUS = {
    "import os\nos._exit(0)": (TamperKind.EARLY_EXIT, "forgery"),
    "from os import _exit as bye\ndef f(): bye(0)": (TamperKind.EARLY_EXIT, "forgery"),
    "import os\nleave = os._exit\ndef f(): leave(0)": (TamperKind.EARLY_EXIT, "forgery"),
    "import os\ndef f(os=os): getattr(os, '_exit')(0)": (TamperKind.EARLY_EXIT, "forgery"),
    "def f(): __import__('os')._exit(0)": (TamperKind.EARLY_EXIT, "forgery"),
    "import sys\nsys.exit()": (TamperKind.EARLY_EXIT, "forgery"),
    "import pytest\ndef f(): raise pytest.skip.Exception('x')": (
        TamperKind.TESTS_SKIPPED,
        "forgery",
    ),
    "import pytest\ndef f(): raise pytest.xfail.Exception": (TamperKind.TESTS_SKIPPED, "forgery"),
    "from _pytest.outcomes import Skipped\ndef f(): raise Skipped": (
        TamperKind.TESTS_SKIPPED,
        "forgery",
    ),
    "from unittest.case import SkipTest\ndef f(): raise SkipTest": (
        TamperKind.TESTS_SKIPPED,
        "forgery",
    ),
    "import gc\nx = gc.get_objects()": (TamperKind.PATCHED_RUNNER, "forgery"),
    "import inspect\ndef f(): return inspect.stack()": (TamperKind.DETECTS_VERIFIER, "doubt"),
    "import sys\nx = sys.modules.get('pytest')": (TamperKind.DETECTS_VERIFIER, "forgery"),
    "import sys\nx = 'unittest' in sys.modules": (TamperKind.DETECTS_VERIFIER, "forgery"),
    "import sys\nx = [m for m in sys.modules.values()]": (TamperKind.DETECTS_VERIFIER, "doubt"),
    "import builtins\nbuiltins.isinstance = None": (TamperKind.PATCHED_RUNNER, "forgery"),
    "import json\njson.dumps = None": (TamperKind.PATCHED_RUNNER, "doubt"),
    "import atexit\natexit.register(print)": (TamperKind.CHANGED_WHILE_TESTED, "doubt"),
    "import subprocess\nsubprocess.Popen(['x'])": (TamperKind.CHANGED_WHILE_TESTED, "doubt"),
    "import ctypes": (TamperKind.HIDDEN_CODE, "doubt"),
    "exec(open('x').read())": (TamperKind.HIDDEN_CODE, "doubt"),
    "import importlib\nimportlib.import_module('a' + 'b')": (TamperKind.HIDDEN_CODE, "doubt"),
    "import sys\nx = getattr(sys, '_get' + 'frame')": (TamperKind.HIDDEN_CODE, "doubt"),
    "import sys\nx = vars(sys)['mod' + 'ules']": (TamperKind.HIDDEN_CODE, "doubt"),
    "import sys\nx = vars(sys)[''.join(['_get', 'frame'])]": (TamperKind.HIDDEN_CODE, "doubt"),
    "def f(frame): return vars(type(frame))['f_locals']": (TamperKind.DETECTS_VERIFIER, "doubt"),
    "# -*- coding: own -*-\nx = 1": (TamperKind.HIDDEN_CODE, "doubt"),
    "x = open('tests/test_calc.py').read()": (TamperKind.READS_TESTS, "forgery"),
    "from tests import test_calc": (TamperKind.READS_TESTS, "forgery"),
    "open('junit.xml', 'w')": (TamperKind.FORGED_REPORT, "forgery"),
    "import os\nx = os.environ['PYTEST_XDIST_WORKER']": (TamperKind.DETECTS_VERIFIER, "forgery"),
    "import datetime as d\nx = d.date.today() > d.date(2030, 1, 1)": (
        TamperKind.DETECTS_VERIFIER,
        "doubt",
    ),
    "class A:\n    def __eq__(self, other): return True": (TamperKind.PATCHED_RUNNER, "doubt"),
}

INNOCENT = {
    "a command line": """
        import argparse, sys
        def main(argv=None):
            parser = argparse.ArgumentParser()
            parser.add_argument("--name", default="you")
            args = parser.parse_args(argv)
            if not args.name:
                sys.exit("no name")
            print(f"Hello, {args.name}")
        if __name__ == "__main__":
            sys.exit(main())
    """,
    "data classes": """
        from dataclasses import dataclass, field
        from functools import total_ordering
        @total_ordering
        @dataclass
        class Card:
            rank: int
            tags: list = field(default_factory=list)
            def __eq__(self, other): return self.rank == other.rank
            def __lt__(self, other): return self.rank < other.rank
            def __contains__(self, tag): return tag in self.tags
            def __bool__(self): return bool(self.tags)
    """,
    "files and formats": """
        import csv, json, os, re
        from pathlib import Path
        def load(path):
            text = Path(path).read_text()
            return json.loads(text) if "json" in path else list(csv.reader(text.splitlines()))
        def report(rows):
            with open("report.csv", "w") as file:
                file.write(re.sub("a", "b", str(rows)))
        HOME = os.environ.get("HOME", "/")
        DEBUG = os.getenv("DEBUG")
    """,
    "dates": """
        import datetime, time
        def age(born): return (datetime.date.today() - born).days // 365
        def expired(at): return datetime.datetime.now() > at
        START = time.time()
    """,
    "programs it runs": """
        import shutil, subprocess
        def git(*args):
            return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout
    """,
    "a visitor": """
        import ast
        class Visitor:
            def visit(self, node):
                method = getattr(self, f"visit_{type(node).__name__}", None)
                return method(node) if method else getattr(node, "value", None)
            def run(self, name): return getattr(self, name)()
    """,
    "threads and logging": """
        import logging, sys, threading
        from concurrent.futures import ThreadPoolExecutor
        log = logging.getLogger(__name__)
        def work(items):
            worker = threading.Thread(target=print)
            worker.start()
            worker.join()
            with ThreadPoolExecutor() as pool:
                return list(pool.map(str, items))
        module = sys.modules[__name__]
        sys.setrecursionlimit(5000)
        sys.path.insert(0, ".")
    """,
    "numbers and plots": """
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.rcParams["figure.dpi"] = 100
        def chart(values, path):
            figure, axes = plt.subplots()
            axes.plot(values)
            figure.savefig(path)
    """,
    "a calculator that parses": """
        import ast, operator
        OPERATORS = {ast.Add: operator.add}
        def evaluate(text):
            node = ast.parse(text, mode="eval").body
            return OPERATORS[type(node.op)](node.left.value, node.right.value)
        def literal(text): return ast.literal_eval(text)
    """,
}  # fmt: skip


@pytest.mark.parametrize("source", SUSPICIOUS)
def test_a_trick_is_called_by_its_name(source: str) -> None:
    findings = read(source)

    assert SUSPICIOUS[source] in {(finding.kind, finding.severity) for finding in findings}
    assert all(finding.path == PATH for finding in findings)


@pytest.mark.parametrize("name", INNOCENT)
def test_an_ordinary_program_is_not_suspected(name: str) -> None:
    assert read(INNOCENT[name]) == ()


def test_what_was_there_before_is_the_persons_own() -> None:
    before = "import ctypes\nimport os\n"

    assert read(f"{before}x = 1\n", before) == ()
    assert [f.kind for f in read(f"{before}os._exit(1)\n", before)] == [TamperKind.EARLY_EXIT]


def test_binary_modules_cannot_be_read() -> None:
    library = {PurePosixPath("fast.so"): TreeFile(b"\x7fELF")}

    (finding,) = read_proposal(Tree(), Tree(files=library), TESTS)

    assert finding.kind is TamperKind.HIDDEN_CODE


def test_broken_syntax_hides_nothing() -> None:
    assert read("def broken(:") == ()


def test_a_finding_says_where() -> None:
    (finding,) = read("import os\n\n\nos._exit(0)\n")

    assert finding.line == 4
    assert "os._exit" in finding.explanation


FOREIGN = {
    "calc.js": "const test = require('node:test');",
    "calc.mjs": "import vm from 'vm';",
    "calc.ts": "expect.extend({ toBe() { return { pass: true }; } });",
    "other.js": "assert.strictEqual = () => {};",
    "hidden.js": "module.exports = new Function('return 1');",
    "calc.go": 'import (\n\t"testing"\n)',
    "calc.rs": "std::panic::set_hook(Box::new(|_| {}));",
    "calc.cpp": "#define EXPECT_EQ(a, b)",
    "reads.go": 'names, _ := filepath.Glob("*.go")',
    "opens.go": "text, err := os.ReadFile(name)",
    "embeds.go": "//go:embed *.go",
    "names.go": 'const own = "calc_test.go"',
    "prints.go": 'fmt.Println("--- PASS: " + name)',
    "reads.rs": 'let text = fs::read_to_string("tests/a.rs");',
    "opens.rs": "let file = File::open(path)?;",
    "includes.rs": 'const TEXT: &str = include_str!("../tests/a.rs");',
    "prints.rs": r"""println!("{{\"type\":\"test\"}}");""",
    "reads.js": "const text = fs.readFileSync(name, 'utf8');",
    "lists.mjs": "import { readdir } from 'node:fs/promises';",
    "names.ts": "const own = './calc.test.ts';",
    "prints.js": "process.stdout.write(JSON.stringify({ numTotalTests: 1 }));",
    "Reads.java": 'var text = Files.readString(Path.of("CalcTest.java"));',
    "Opens.java": "new BufferedReader(new FileReader(name));",
    "Calc.java": "import org.junit.platform.launcher.Launcher;",
    "reads.cpp": 'std::ifstream tests("calc_test.cpp");',
    "opens.c": 'FILE *tests = fopen(name, "r");',
    "includes.cc": '#include "calc_test.cpp"',
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_python_is_read_by_its_signs(name: str) -> None:
    path = PurePosixPath(name)
    after = Tree(files={path: TreeFile(FOREIGN[name].encode())})

    (finding,) = read_proposal(Tree(), after, TESTS)

    assert finding.severity == "doubt"
    assert finding.path == path
    assert finding.line
    assert not read_proposal(
        after, after.with_files({PurePosixPath("a.txt"): TreeFile(b"")}), TESTS
    )


def test_ordinary_programs_in_other_languages_are_let_be() -> None:
    files = {
        "a.js": "const assert = require('node:assert');\nassert.ok(x == 1);\nprocess.exit(1);",
        "a.go": 'package a\nimport "fmt"\nfunc F() { fmt.Println("testing") }',
        "a.rs": "#[cfg(test)]\nmod tests {}\npub fn f() -> i32 { 1 }",
        "b.js": "const fs = require('node:fs');\nfs.writeFileSync('out.txt', test.spec);",
        "b.go": 'package b\nimport "os"\nfunc F() { os.Stdout.WriteString("PASS") }',
        "b.rs": "use std::io::Read;\nfn f(s: &mut String) { std::io::stdin().read_to_string(s); }",
        "B.java": "class B { int read(java.util.Scanner in) { return in.nextInt(); } }",
        "b.cpp": '#include <fstream>\nint f() { std::ofstream out("a.txt"); return reopen(3); }',
        "a.c": "#include <assert.h>\n#define LIMIT 10\nint f(void) { assert(1); return 0; }",
    }
    after = Tree(files={PurePosixPath(p): TreeFile(text.encode()) for p, text in files.items()})

    assert read_proposal(Tree(), after, TESTS) == ()


def test_what_a_file_did_before_is_not_held_against_the_proposal() -> None:
    other = PurePosixPath("other.py")
    acts = [
        Finding(kind=TamperKind.HIDDEN_CODE, severity="doubt", explanation="x", path=path)
        for path in (PATH, other, PurePosixPath("new.py"), None)
    ]
    before = Tree(files={PATH: TreeFile(b"eval(x)"), other: TreeFile(b"x = 1")})
    after = before.with_files({PATH: TreeFile(b"y = eval(x)")})

    held = attributable(before, after, acts)

    assert [finding.path for finding in held] == [PurePosixPath("new.py"), None]
