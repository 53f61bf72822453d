"""Which modules programs may import on an executor, by its lists."""

from pathlib import PurePosixPath

import pytest

from assay.contracts.errors import PolicyError
from assay.contracts.execution import Command, Program, PythonCode
from assay.screening.scan import ModuleRules


def refused(rules: ModuleRules, work: Program | str) -> str:
    with pytest.raises(PolicyError) as caught:
        rules.check_work(work)
    return str(caught.value)


def test_without_lists_everything_may_be_imported() -> None:
    ModuleRules().check_work(PythonCode(source=b"import socket, ctypes, subprocess\neval('1')"))


@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "x = 1\nfrom socket import create_connection",
        "import json, socket as s",
        "def f():\n    import socket",
        "__import__('soc' + 'ket')",
        "import importlib\nimportlib.import_module('socket')",
    ],
)
def test_a_denied_module_is_refused_however_it_is_imported(source: str) -> None:
    rules = ModuleRules(deny=["socket"])

    for work in (
        PythonCode(source=source.encode()),
        source,
        Command(argv=("/usr/bin/python3", "-I", "-c", source)),
    ):
        assert "imports socket: is denied here" in refused(rules, work)


def test_other_modules_calls_and_paths_are_no_matter_of_a_deny_list() -> None:
    rules = ModuleRules(deny=["socket"])

    rules.check_work(
        "import subprocess, ctypes\neval('1')\nopen('/etc/x', 'w')\n().__class__.__mro__"
    )
    rules.check_work(Command(argv=("bash", "-c", "true")))


def test_an_allow_list_leaves_nothing_else() -> None:
    rules = ModuleRules(allow=["json", "os.path", "concurrent"], deny=["concurrent.futures"])

    rules.check_work("from __future__ import annotations\nimport json.decoder, os.path")
    assert "imports os: is not among" in refused(rules, "import os")
    assert "imports numpy" in refused(rules, "from numpy import array")
    assert "concurrent.futures" in refused(rules, "import concurrent.futures")


def test_a_module_whose_name_is_not_known_is_refused() -> None:
    assert "made at run time" in refused(ModuleRules(allow=["json"]), "__import__(input())")


def test_python_files_are_read_and_others_are_not() -> None:
    rules = ModuleRules(deny=["socket"])

    rules.check_file(PurePosixPath("notes.txt"), b"import socket")
    with pytest.raises(PolicyError, match=r"'pkg/a\.py', line 2: imports socket"):
        rules.check_file(PurePosixPath("pkg/a.py"), b"\nimport socket\n")
