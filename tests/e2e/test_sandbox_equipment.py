"""Packages and hosts from the command line: given, refused, listed, removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.storage.certificates import read_certificate
from tests.support.undertakings import SMALL, a_script
from tests.support.wheels import make_wheel, only_from

ASSAY = (sys.executable, "-m", "assay")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    make_wheel(tmp_path / "index", "thing", commands={"greet": "thing:main"})
    return {
        **os.environ,
        **only_from(tmp_path / "index"),
        "ASSAY_SANDBOX__PACKAGES_DIR": str(tmp_path / "packages"),
        "ASSAY_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def assay(
    environment: dict[str, str], *words: str | Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_packages_are_given_listed_and_removed(environment: dict[str, str]) -> None:
    ran = assay(environment, "sandbox", "run", "--package", "thing==1.*", "--", "greet")
    listed = assay(environment, "sandbox", "packages", "list")
    as_json = assay(environment, "sandbox", "packages", "list", "--json")
    cleaned = assay(environment, "sandbox", "packages", "clean", "--yes")
    empty = assay(environment, "sandbox", "packages", "list")

    assert (ran.stdout, ran.stderr, ran.returncode) == ("hello\n", "", 0)
    assert "thing==1.0" in listed.stdout
    assert json.loads(as_json.stdout)[0]["packages"] == ["thing==1.0"]
    assert cleaned.stdout.startswith("removed 1 layers")
    assert empty.stdout == "no packages were fetched\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--package", "reqeusts"), "there is no package named 'reqeusts'"),
        (("--package", "thing>=9"), "no version that fits thing>=9"),
        (("--package", "./thing"), "not a package and a version: './thing'"),
        (("--package", "--upgrade"), "not a package and a version: '--upgrade'"),
        (("--allow-host", "https://example.org"), "not a host: 'https://example.org'"),
        (("--allow-host", "example.org:0"), "not a port: 'example.org:0'"),
        (("--allow-host", "example.org:http"), "not a host: 'example.org:http'"),
        (("--network", "none", "--allow-host", "a.org"), "contradict each other"),
        (("--network", "all"), "unknown network 'all'"),
    ],
)
def test_what_cannot_be_given_is_one_line_and_a_hint(
    environment: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    done = assay(environment, "sandbox", "run", *words, "--", "true")

    first, *more = done.stderr.splitlines()
    assert said in first
    assert all(line.startswith("hint: ") for line in more)
    assert done.returncode == 2


def test_what_was_denied_is_said_and_counted(environment: dict[str, str]) -> None:
    source = "import socket\ntry: socket.getaddrinfo('other.org', 1)\nexcept OSError: print('no')"
    words = ("sandbox", "run", "--allow-host", "example.org")

    plain = assay(environment, *words, "--", "python3", "-c", source)
    as_json = assay(environment, *words, "--json", "--", "python3", "-c", source)

    assert plain.stdout == "no\n"
    assert plain.stderr == "assay: denied: other.org (not on the list of hosts)\n"
    assert json.loads(as_json.stdout)["denials"] == [
        {"host": "other.org", "port": None, "why": "not on the list of hosts"}
    ]


@pytest.mark.slow
def test_a_run_has_its_packages_and_so_has_its_proof(
    environment: dict[str, str], tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "test_answer.py").write_text(
        "from answer import version\n\n\ndef test_it():\n    assert version() == '1.0'\n"
    )
    reply = "```python\nimport thing\n\n\ndef version():\n    return thing.VERSION\n```"
    model = a_script(tmp_path, [reply], SMALL)
    words = ("--workspace", workspace, "--tests", "test_answer.py", "--model", model)

    ran = assay(
        environment,
        *("run", "answer", *words, "--package", "thing", "--memory", "off", "--yes", "--json"),
    )
    certificate = Path(json.loads(ran.stdout)["certificate"])
    proven = assay(environment, "verify", certificate)
    make_wheel(tmp_path / "index", "thing", "2.0")
    proven_later = assay(environment, "verify", certificate)

    assert ran.returncode == 0, ran.stderr
    assert read_certificate(certificate).environment.given == ("thing==1.0",)
    assert proven.returncode == 0, proven.stderr
    assert proven_later.returncode == 0, "the version of the proof, not the newest"


def test_a_run_that_asks_for_no_package_there_is_leaves_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    model = a_script(tmp_path, ["nothing"], SMALL)

    folder = tmp_path / "workspace"
    folder.mkdir()

    done = assay(
        environment, "run", "goal", "--model", model, "--package", "reqeusts", folder=folder
    )

    assert done.returncode == 2
    assert "there is no package named 'reqeusts'" in done.stderr
    assert assay(environment, "runs", "--json").stdout.strip() in {"[]", ""}
