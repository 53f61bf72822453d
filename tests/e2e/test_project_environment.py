"""The environment that a project declares: in `sandbox run`, in a run, and in its certificate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from assay.storage.certificates import read_certificate
from tests.support.requirements import require
from tests.support.undertakings import SMALL, a_script
from tests.support.wheels import make_wheel, only_from

ASSAY = (sys.executable, "-m", "assay")
PROJECT = {
    "pyproject.toml": """
[project]
name = "shop"
version = "1.5"
dependencies = ["thing>=1"]
[project.scripts]
shop = "shop.cli:main"
[project.entry-points.pytest11]
shop = "shop.plugin"
[dependency-groups]
test = ["extra"]
""",
    "src/shop/__init__.py": "import thing\n\n\ndef total(prices):\n    return 0\n",
    "src/shop/cli.py": "def main():\n    print('open')\n",
    "src/shop/plugin.py": (
        "import pytest\n\n\n@pytest.fixture\ndef prices():\n    return [1, 2]\n"
    ),
    "tests/test_shop.py": """
import subprocess
from importlib.metadata import version
import extra
import shop


def test_total(prices):
    assert shop.total(prices) == 3


def test_metadata():
    assert version("shop") == "1.5"
    assert "/src/shop/" in shop.__file__


def test_command():
    assert subprocess.check_output(["shop"], text=True) == "open\\n"
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    make_wheel(tmp_path / "index", "thing")
    make_wheel(tmp_path / "index", "extra")
    return {
        **os.environ,
        **only_from(tmp_path / "index"),
        "ASSAY_SANDBOX__PACKAGES_DIR": str(tmp_path / "packages"),
        "ASSAY_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def assay(environment: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_tests_of_a_project_find_its_packages_plugins_and_commands(
    environment: dict[str, str], project: Path
) -> None:
    ran = assay(
        environment,
        *("sandbox", "run", "--workspace", project, "--env", "auto", "--", "pytest", "-q"),
    )
    without = assay(
        environment, "sandbox", "run", "--workspace", project, "--", "pytest", "-q", "tests"
    )

    assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "No module named" in without.stdout


def test_env_lists_and_installs_what_the_project_declares(
    environment: dict[str, str], project: Path
) -> None:
    shown = assay(environment, "env", "show", "--project", project)
    built = json.loads(assay(environment, "env", "build", "--project", project, "--json").stdout)
    cleaned = assay(environment, "env", "clean")

    assert "project   shop 1.5, from src, ." in shown.stdout
    assert "thing>=1" in shown.stdout
    assert built["files"] == ["pyproject.toml"]
    assert [pin.partition(" --hash=sha256:")[0] for pin in built["pins"]] == [
        "extra==1.0",
        "thing==1.0",
    ]
    assert all("--hash=sha256:" in pin for pin in built["pins"])
    assert cleaned.stdout == "removed 1 layer of packages\n"


def test_a_run_and_its_certificate_have_the_environment(
    environment: dict[str, str], project: Path, tmp_path: Path
) -> None:
    source = "import thing\n\n\ndef total(prices):\n    return sum(prices)\n"
    reply = f"```python\n# src/shop/__init__.py\n{source}```"
    model = a_script(tmp_path, [reply], SMALL)

    ran = assay(
        environment,
        *("run", "repair total", "--workspace", project, "--tests", "tests/test_shop.py"),
        *("--model", model, "--memory", "off", "--yes", "--json"),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outcome = json.loads(ran.stdout)
    certificate = Path(outcome["certificate"])
    make_wheel(tmp_path / "index", "thing", "2.0")
    verified = assay(environment, "verify", certificate)

    recorded = read_certificate(certificate).environment
    assert outcome["grade"] == "proven"
    assert [pin.partition(" --hash=")[0] for pin in recorded.given] == ["extra==1.0", "thing==1.0"]
    assert all("--hash=sha256:" in pin for pin in recorded.given)
    assert recorded.project is not None
    assert recorded.project.name == "shop"
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_programs_and_checks_see_no_packages_of_assay_in_a_complete_environment(
    environment: dict[str, str], tmp_path: Path
) -> None:
    kept = ("PIP_", "UV_")
    own = {name: value for name, value in environment.items() if not name.startswith(kept)}
    own |= {name: value for name, value in os.environ.items() if name.startswith(kept)}
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "requirements.txt").write_text("pytest\n")
    (folder / "test_it.py").write_text(
        "def test_it():\n    import _pytest\n    assert '/packages/' in _pytest.__file__\n"
        "    import anyio\n"
    )
    model = a_script(tmp_path, ["nothing"], SMALL)

    program = assay(
        own, "sandbox", "run", "--workspace", folder, "--env", "auto", "--", "pytest", "-q"
    )
    offline = "index" in program.stderr and program.returncode == 2
    require("package-index", available=not offline, why=program.stderr)
    ran = assay(
        own,
        *("run", "goal", "--workspace", folder, "--check", "pytest test_it.py", "--json"),
        *("--model", model, "--attempts", "1"),
    )

    assert "No module named 'anyio'" in program.stdout, program.stdout + program.stderr
    assert "does not have the package 'anyio'" in ran.stderr


def make_venv(folder: Path, environment: dict[str, str]) -> Path:
    """Create a virtual environment with the packages of the index, and with a `.pth` file."""
    venv = folder / ".venv"
    index = ("--offline", "--no-index", "--find-links", environment["PIP_FIND_LINKS"])
    python = ("--python", venv / "bin/python")
    for command in (
        ("venv", "--quiet", "--python", sys.executable, venv),
        ("pip", "install", "--quiet", *python, *index, "thing", "extra"),
    ):
        subprocess.run([find_uv_bin(), *command], check=True)
    (site,) = (venv / "lib").glob("python3*/site-packages")
    (site / "own.pth").write_text("import os; os.environ['EXECUTED'] = 'yes'\n")
    return venv


def test_a_virtual_environment_is_mounted_and_certified(
    environment: dict[str, str], project: Path, tmp_path: Path
) -> None:
    venv = make_venv(project, environment)
    code = "import os, thing; print(thing.__file__, os.environ.get('EXECUTED'))"

    ran = assay(
        environment,
        *("sandbox", "run", "--workspace", project, "--env", venv, "--", "python3", "-c", code),
    )
    other = assay(
        environment, "sandbox", "run", "--workspace", project, "--env", tmp_path, "--", "true"
    )
    (venv / "lib").rename(tmp_path / "lib")
    (venv / "lib" / "python3.2").mkdir(parents=True)
    older = assay(
        environment, "sandbox", "run", "--workspace", project, "--env", venv, "--", "true"
    )

    assert ran.stdout == "/opt/assay/site/thing.py None\n", ran.stderr
    assert other.returncode == 2
    assert "the folder of a virtual environment" in other.stderr
    assert "is for python3.2, and sandboxes run python3" in older.stderr


def test_a_package_that_does_not_exist_ends_the_run_before_the_model(
    environment: dict[str, str], project: Path, tmp_path: Path
) -> None:
    (project / "requirements.txt").write_text("reqeusts\n")
    model = a_script(tmp_path, ["nothing"], SMALL)

    ran = assay(environment, "run", "goal", "--workspace", project, "--model", model, "--yes")

    assert ran.returncode == 2
    assert "there is no package named 'reqeusts'" in ran.stderr
    assert "--env off" in ran.stderr
    assert assay(environment, "runs", "--json").stdout.strip() in {"[]", ""}
