"""Snippets that a policy must name, each at its line."""

from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.screening.rules import ScreeningPolicy
from assay.screening.scan import Screening

MAIN = PurePosixPath("main.py")
SCREEN = Screening(ScreeningPolicy())

IMPORTS = (
    (1, "import subprocess"),
    (1, "import subprocess as sp"),
    (1, "from subprocess import run"),
    (1, "import numpy as np, ctypes"),
    (2, "import json\nimport socket"),
    (3, "def f():\n    if True:\n        from ctypes import CDLL"),
    (2, "try:\n    import pty\nexcept ImportError:\n    pty = None"),
    (1, "from http import client"),
    (1, "import http.client as hc"),
    (1, "from urllib import request"),
    (1, "import urllib.request"),
    (1, "import requests"),
    (1, "import multiprocessing, _posixsubprocess"),
    (1, "import marshal"),
    (1, "import multiprocessing.connection as c\nc.Client(('10.0.0.1', 80))"),
    (1, "from distutils.spawn import spawn"),
    (1, "import zipimport\nzipimport.zipimporter('x.zip').load_module('a')"),
    (1, "import venv\nvenv.create('/x', with_pip=True)"),
    (1, "from pip._internal import main"),
    (1, "__import__('subprocess').run(['ls'])"),
    (1, "__import__('sub' + 'process')"),
    (2, "import importlib\nimportlib.import_module('socket')"),
    (2, "from importlib import import_module as load\nload('ctypes')"),
    (2, "import sys\nsys.modules['subprocess'].run('ls')"),
    (1, "import os, sys; m = sys.modules['soc' 'ket']"),
)

CALLS = (
    (2, "import pandas as pd\npd.read_pickle('a.pkl')"),
    (2, "import numpy as np\nnp.load('a.npy', allow_pickle=True)"),
    (2, "import pandas as pd\npd.read_csv('https://example.org/a.csv')"),
    (2, "import os\nlist(vars(os).values())[0]()"),
    (1, "eval('1 + 1')"),
    (1, "exec(open('x').read())"),
    (1, "results = list(map(eval, ['1', '2']))"),
    (1, "run = exec"),
    (2, "import builtins\nbuiltins.eval('1')"),
    (1, "from builtins import exec as go"),
    (2, "import os\nos.system('ls')"),
    (2, "import os as o\no.system('ls')"),
    (1, "from os import system"),
    (3, "from os import system as s\n\ns('ls')"),
    (2, "from os import *\npopen('ls')"),
    (3, "import os\nx = os\nx.popen('ls')"),
    (2, "import os\nstart = os.execvp"),
    (2, "import os\nos.kill(1, 9)"),
    (2, "import os\nos._exit(0)"),
    (2, "import os\nif os.fork() == 0:\n    pass"),
    (2, "import os\nos.setuid(0)"),
    (2, "import os\ngetattr(os, 'system')('ls')"),
    (2, "import os\ngetattr(os, 'sys' + 'tem')('ls')"),
    (3, "import os\nname = input()\ngetattr(os, name)('ls')"),
    (2, "import os\nos.__dict__['system']('ls')"),
    (2, "import os\nvars(os)['popen']('ls')"),
    (1, "__import__('os').system('ls')"),
    (2, "import shutil\nshutil.os.system('ls')"),
    (2, "import random\nrandom._os.popen('ls')"),
    (2, "import sys\nsys.modules['os'].system('ls')"),
    (1, "globals()['eval']('1')"),
    (2, "import importlib\nimportlib.import_module('os').system('ls')"),
    (2, "import asyncio\nasyncio.run(asyncio.create_subprocess_shell('ls'))"),
    (2, "import asyncio\nasyncio.open_connection('h', 1)"),
    (2, "import gc\ngc.get_objects()"),
    (2, "import types\ntypes.FunctionType(code, {})"),
    (2, "from types import FunctionType as F\nF(code, {})"),
    (2, "from importlib import util\nutil.spec_from_file_location('x', '/srv/x.py')"),
    (2, "import numpy as np\nnp.ctypeslib.load_library('libc', '.')"),
    (2, "import logging.config\nlogging.config.listen(9999)"),
    (2, "import faulthandler\nfaulthandler._sigsegv()"),
    (2, "import os\nos.openpty()"),
    (3, "class C:\n    def m(self):\n        eval(self.x)"),
    (2, "def f(eval):\n    return g(lambda: exec('x'), eval)"),
    (3, "def f(eval):\n    return eval\neval('1')"),
    (3, "if False:\n    eval = None\neval('1')"),
    (2, "eval = eval\neval('1')"),
    (3, "def eval(x): ...\ndel eval\neval('1')"),
    (1, "(lambda e=eval: e('1'))()"),
    (2, "import os\n@os.system\ndef f(): ..."),
    (1, "x = [s := exec, s('1')]"),
    (2, "import pandas as pd\npd.io.common.subprocess.run('x')"),
)

ATTRIBUTES = (
    (2, "import sys\nsys._getframe(1).f_locals['secret']"),
    (3, "async def f(loop, p):\n    await loop.sock_recv(p, 1)\n    await loop.subprocess_exec(p)"),
    (1, "().__class__.__bases__[0].__subclasses__()"),
    (1, "''.__class__.__mro__[1]"),
    (1, "type(x).__base__.__subclasses__()"),
    (1, "f.__globals__['os']"),
    (1, "print.__self__.__builtins__"),
    (1, "__builtins__.open"),
    (1, "getattr(__builtins__, name)"),
    (1, "getattr((), '__sub' 'classes__')"),
    (1, "globals()['__builtins__']"),
    (1, "'{0.__init__.__globals__}'.format(x)"),
    (2, "from operator import attrgetter\nattrgetter('__class__.__subclasses__')(x)"),
    (2, "import sys\nsys._getframe().f_back.f_globals"),
    (1, "g.gi_frame.f_builtins"),
    (4, "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame"),
    (1, "f.__code__ = g.__code__"),
)

DYNAMIC_IMPORTS = (
    (1, "__import__(name)"),
    (1, "__import__(''.join(['o', 's']))"),
    (2, "import importlib\nimportlib.import_module(input())"),
    (2, "import importlib as il\nil.import_module(f'{name}.core')"),
)

WRITES_OUTSIDE = (
    (1, "open('/etc/passwd', 'w')"),
    (1, "open('/home/me/.bashrc', mode='a').write('x')"),
    (1, "open(file='/root/x', mode='xb')"),
    (1, "open('/app/../etc/cron.d/x', 'w')"),
    (2, "import os\nopen(os.path.join('/etc', name), 'w')"),
    (2, "import os\nopen(os.path.expanduser('~/.ssh/authorized_keys'), 'a')"),
    (1, "open(f'/etc/{name}', 'w')"),
    (1, "open('/etc/' + name, 'r+')"),
    (2, "target = '/usr/lib/python3/site.py'\nopen(target, 'w')"),
    (2, "from pathlib import Path\nPath('/etc/hosts').write_text('x')"),
    (2, "from pathlib import Path\n(Path.home() / '.profile').write_text('x')"),
    (3, "import pathlib\np = pathlib.Path('/etc') / 'hosts'\np.open('w')"),
    (2, "import os\nos.remove('/var/log/syslog')"),
    (2, "import shutil\nshutil.rmtree('/')"),
    (2, "import shutil\nshutil.copy('x', '/usr/bin/x')"),
    (2, "import os\nos.open('/etc/x', os.O_WRONLY | os.O_CREAT)"),
    (2, "import io\nio.open('//etc//x', 'wb')"),
)

CASES = [
    pytest.param(rule, line, code, id=code.replace("\n", "; "))
    for rule, cases in (
        ("import", IMPORTS),
        ("call", CALLS),
        ("attribute", ATTRIBUTES),
        ("dynamic_import", DYNAMIC_IMPORTS),
        ("write_outside", WRITES_OUTSIDE),
    )
    for line, code in cases
]


@pytest.mark.parametrize(("rule", "line", "code"), CASES)
def test_what_is_dangerous_is_named_at_its_line(rule: str, line: int, code: str) -> None:
    findings = SCREEN(MAIN, dedent(code).encode())

    assert (rule, line) in {(finding.rule, finding.line) for finding in findings}
    assert {finding.path for finding in findings} == {MAIN}


def test_a_finding_says_what_and_why() -> None:
    (finding,) = SCREEN(MAIN, b"import json\nimport subprocess\n")

    assert (finding.line, finding.rule) == (2, "import")
    assert finding.explanation == "imports subprocess: starts other programs"


def test_findings_come_by_line_and_once_each() -> None:
    findings = SCREEN(MAIN, b"import os\nos.kill(1, 9); os.kill(2, 9)\neval('1')\nimport socket\n")

    assert [(finding.line, finding.rule) for finding in findings] == [
        (2, "call"),
        (3, "call"),
        (4, "import"),
    ]


def test_a_path_in_an_explanation_is_quoted_and_short() -> None:
    code = f"open('/etc/\\x1b[2J{'x' * 500}', 'w')"

    (finding,) = SCREEN(MAIN, code.encode())

    assert "\x1b" not in finding.explanation
    assert len(finding.explanation) < 150


def test_the_settings_may_deny_more() -> None:
    policy = ScreeningPolicy(
        deny_imports=("pickle", "concurrent"), deny_calls=("os.remove", "builtins.compile")
    )
    code = b"import pickle\nimport os\nos.remove('x')\ncompile('1', 'x', 'eval')\n"

    findings = Screening(policy)(MAIN, code + b"from concurrent.futures import wait\n")

    assert [finding.line for finding in findings] == [1, 3, 4, 5]
    assert SCREEN(MAIN, code) == ()


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ("subprocess", "import subprocess\nsubprocess.run('ls')"),
        ("http.client", "from http import client"),
        ("os.kill", "from os import kill\nkill(1, 9)"),
        ("builtins.eval", "eval('1')"),
        ("f_back", "frame.f_back"),
        ("__mro__", "''.__class__.__mro__"),
        ("importlib.import_module", "import importlib\nimportlib.import_module(name)"),
        ("/data", "open('/data/x', 'w')"),
    ],
)
def test_the_settings_may_allow_what_is_denied(allowed: str, code: str) -> None:
    assert SCREEN(MAIN, code.encode())
    assert Screening(ScreeningPolicy(allow=(allowed,)))(MAIN, code.encode()) == ()


def test_a_part_may_be_allowed_of_a_module_that_is_denied() -> None:
    policy = ScreeningPolicy(deny_imports=("concurrent",), allow=("concurrent.futures",))

    assert Screening(policy)(MAIN, b"import concurrent.futures") == ()
    assert len(Screening(policy)(MAIN, b"import concurrent")) == 1


def test_the_workspace_is_where_the_policy_says() -> None:
    policy = ScreeningPolicy(workspace=PurePosixPath("/work"))

    assert Screening(policy)(MAIN, b"open('/work/x', 'w')") == ()
    assert len(Screening(policy)(MAIN, b"open('/app/x', 'w')")) == 1
