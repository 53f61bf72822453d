"""Detection of the environment that a project declares, with files as real projects have them."""

from contextlib import suppress
from pathlib import Path

import pytest

from assay.contracts.errors import AssayError, PackageError
from assay.environment.declared import DeclaredEnvironment
from assay.environment.detect import detect_environment
from assay.environment.project_files import ProjectFiles


def detect(folder: Path, files: dict[str, str]) -> DeclaredEnvironment:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return detect_environment(ProjectFiles(folder))


def names(declared: DeclaredEnvironment) -> list[str]:
    return sorted(text.partition(" --hash")[0] for text in declared.requirements)


PEP_621 = """
[project]
name = "Some.Thing"
version = "1.2"
dependencies = ["attrs>=23", "colorama ; sys_platform == 'win32'"]
[project.optional-dependencies]
test = ["pytest-mock", "some-thing[speed]"]
speed = ["orjson"]
docs = ["sphinx"]
[project.scripts]
thing = "some_thing.cli:main"
[project.entry-points.pytest11]
thing = "some_thing.plugin"
[dependency-groups]
tests = ["pytest>=8", {include-group = "typing"}]
typing = ["mypy"]
docs = ["furo"]
"""


def test_an_empty_folder_declares_nothing(tmp_path: Path) -> None:
    assert detect(tmp_path, {"notes.txt": "hello"}).empty


def test_project_metadata_gives_requirements_of_tests_too(tmp_path: Path) -> None:
    declared = detect(tmp_path, {"pyproject.toml": PEP_621, "src/some_thing/__init__.py": ""})

    assert names(declared) == ["attrs>=23", "mypy", "orjson", "pytest-mock", "pytest>=8"]
    assert not declared.locked


def test_the_project_is_described_as_an_editable_install(tmp_path: Path) -> None:
    declared = detect(tmp_path, {"pyproject.toml": PEP_621, "src/some_thing/__init__.py": ""})

    project = declared.project
    assert project is not None
    assert (project.name, project.version) == ("some-thing", "1.2")
    assert project.folders == ("src", "")
    assert "[console_scripts]\nthing = some_thing.cli:main" in project.entry_points
    assert "[pytest11]\nthing = some_thing.plugin" in project.entry_points


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"PKG-INFO": "Metadata-Version: 2.1\nName: thing\nVersion: 3.4\n"}, "3.4"),
        ({}, "0.0.0"),
    ],
)
def test_a_dynamic_version_comes_from_the_built_metadata(
    tmp_path: Path, files: dict[str, str], version: str
) -> None:
    text = '[project]\nname = "thing"\ndynamic = ["version"]\n'

    declared = detect(tmp_path, {"pyproject.toml": text, **files})

    assert declared.project is not None
    assert declared.project.version == version


def test_a_version_in_the_source_is_read(tmp_path: Path) -> None:
    text = (
        '[project]\nname = "thing"\ndynamic = ["version"]\n'
        '[tool.setuptools.dynamic]\nversion = {attr = "thing.__version__"}\n'
    )

    declared = detect(
        tmp_path, {"pyproject.toml": text, "src/thing/__init__.py": '__version__ = "5.6"\n'}
    )

    assert declared.project is not None
    assert declared.project.version == "5.6"


UV_LOCK = """
version = 1
[[package]]
name = "app"
version = "0.1"
source = { editable = "." }
dependencies = [{ name = "click" }, { name = "old", marker = "python_full_version < '3'" }]
[package.dev-dependencies]
dev = [{ name = "pytest" }]
docs = [{ name = "sphinx" }]
[[package]]
name = "click"
version = "8.1.7"
source = { registry = "index" }
sdist = { url = "u", hash = "sha256:aa" }
wheels = [{ url = "u", hash = "sha256:bb" }]
[[package]]
name = "old"
version = "1"
source = { registry = "index" }
[[package]]
name = "pytest"
version = "8.3.4"
source = { registry = "index" }
dependencies = [{ name = "iniconfig" }]
wheels = [{ url = "u", hash = "sha256:cc" }]
[[package]]
name = "iniconfig"
version = "2.0.0"
source = { registry = "index" }
wheels = [{ url = "u", hash = "sha256:dd" }]
[[package]]
name = "sphinx"
version = "9"
source = { registry = "index" }
"""


def test_a_lock_of_uv_comes_first_and_gives_exact_versions(tmp_path: Path) -> None:
    declared = detect(
        tmp_path,
        {
            "uv.lock": UV_LOCK,
            "pyproject.toml": '[project]\nname = "app"\nversion = "0.1"\n',
            "requirements.txt": "ignored\n",
        },
    )

    assert declared.locked
    assert declared.requirements == (
        "click==8.1.7 --hash=sha256:aa --hash=sha256:bb",
        "iniconfig==2.0.0 --hash=sha256:dd",
        "pytest==8.3.4 --hash=sha256:cc",
    )
    assert declared.files[0] == "uv.lock"


def test_a_package_from_git_in_a_lock_is_an_error_that_names_it(tmp_path: Path) -> None:
    lock = UV_LOCK.replace('{ registry = "index" }', '{ git = "https://example.org/x" }')

    with pytest.raises(PackageError, match="comes from a git repository") as caught:
        detect(tmp_path, {"uv.lock": lock, "pyproject.toml": '[project]\nname = "app"\n'})

    assert "--env off" in caught.value.hint


POETRY = """
[tool.poetry]
name = "app"
version = "2.0"
[tool.poetry.dependencies]
python = "^3.9"
requests = "^2.31"
extra = { version = "~1.4", optional = true }
[tool.poetry.group.dev.dependencies]
pytest = "*"
[tool.poetry.group.docs.dependencies]
sphinx = "*"
[tool.poetry.scripts]
app = "app:main"
"""
POETRY_LOCK = """
[[package]]
name = "requests"
version = "2.31.0"
optional = false
files = [{file = "requests.whl", hash = "sha256:aa"}]
[package.dependencies]
idna = ">=2.5"
pysocks = {version = ">=1", optional = true, markers = "extra == \\"socks\\""}
[package.extras]
socks = ["PySocks (>=1)"]
[[package]]
name = "idna"
version = "3.7"
files = [{file = "idna.whl", hash = "sha256:bb"}]
[[package]]
name = "pytest"
version = "8.3.4"
files = [{file = "pytest.whl", hash = "sha256:cc"}]
[[package]]
name = "sphinx"
version = "7.0"
files = [{file = "sphinx.whl", hash = "sha256:dd"}]
"""


def test_a_lock_of_poetry_is_followed_from_the_requirements(tmp_path: Path) -> None:
    declared = detect(tmp_path, {"pyproject.toml": POETRY, "poetry.lock": POETRY_LOCK})

    assert declared.locked
    assert names(declared) == ["idna==3.7", "pytest==8.3.4", "requests==2.31.0"]


def test_versions_of_poetry_are_translated(tmp_path: Path) -> None:
    declared = detect(tmp_path, {"pyproject.toml": POETRY})

    assert names(declared) == ["pytest", "requests<3,>=2.31"]
    assert declared.project is not None
    assert declared.project.entry_points == "[console_scripts]\napp = app:main\n"


def test_a_lock_of_pdm_is_filtered_by_groups(tmp_path: Path) -> None:
    lock = """
[[package]]
name = "rich"
version = "13.0"
groups = ["default"]
files = [{file = "r.whl", hash = "sha256:aa"}]
[[package]]
name = "pytest"
version = "8.0"
groups = ["test"]
files = [{file = "p.whl", hash = "sha256:bb"}]
[[package]]
name = "sphinx"
version = "7.0"
groups = ["doc"]
[[package]]
name = "colorama"
version = "1"
groups = ["default"]
marker = "sys_platform == 'win32'"
"""

    declared = detect(tmp_path, {"pdm.lock": lock, "pyproject.toml": '[project]\nname = "a"\n'})

    assert names(declared) == ["pytest==8.0", "rich==13.0"]


def test_requirements_files_include_others_and_constraints(tmp_path: Path) -> None:
    declared = detect(
        tmp_path,
        {
            "requirements.txt": "--index-url https://example.org/simple\nflask >= 3  # web\n",
            "requirements/test.txt": "-r ../requirements.txt\n-c limits.txt\npytest \\\n  >= 8\n",
            "requirements/limits.txt": "werkzeug<4\n",
            "requirements/docs.txt": "sphinx\n",
        },
    )

    assert names(declared) == ["flask>=3", "pytest>=8"]
    assert declared.constraints == ("werkzeug<4",)


def test_requirements_of_tests_come_without_those_of_developers(tmp_path: Path) -> None:
    listed = {
        "requirements/dev.txt": "-r tests.txt\nsphinx\n",
        "requirements/tests.txt": "pytest\n",
    }

    assert names(detect(tmp_path, listed)) == ["pytest"]
    assert "sphinx" in names(detect(tmp_path / "b", {"requirements/dev.txt": "sphinx\n"}))


def test_exact_requirements_with_hashes_are_a_lock(tmp_path: Path) -> None:
    text = "six==1.16.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via thing\n"

    declared = detect(tmp_path, {"requirements.txt": text})

    assert declared.locked
    assert declared.requirements == ("six==1.16.0 --hash=sha256:aa --hash=sha256:bb",)


@pytest.mark.parametrize(
    "line",
    [
        "git+https://example.org/x.git",
        "thing @ https://example.org/thing.whl",
        "./vendor/thing",
        "-e ../other",
        "-r ../../etc/passwd",
        "--global-option=x",
        "thing ; nonsense == 'x'",
        "=== ??",
    ],
)
def test_a_line_that_cannot_be_used_is_named_in_the_error(tmp_path: Path, line: str) -> None:
    with pytest.raises(PackageError) as caught:
        detect(tmp_path, {"requirements.txt": f"six\n{line}\n"})

    assert "--env off" in caught.value.hint


def test_the_project_with_extras_in_a_requirements_file(tmp_path: Path) -> None:
    declared = detect(
        tmp_path, {"pyproject.toml": PEP_621, "requirements-dev.txt": "-e .[speed]\ntox\n"}
    )

    assert {"orjson", "tox"} <= set(names(declared))


def test_setup_cfg_gives_metadata_and_tests(tmp_path: Path) -> None:
    text = """
[metadata]
name = old-style
version = 1.1
[options]
package_dir =
    = lib
install_requires =
    six>=1.10
    # a comment
tests_require = mock
[options.extras_require]
testing = pytest-xdist
[options.entry_points]
console_scripts =
    old = old.cli:main
"""

    declared = detect(tmp_path, {"setup.cfg": text, "lib/old/__init__.py": ""})

    assert names(declared) == ["mock", "pytest-xdist", "six>=1.10"]
    assert declared.project is not None
    assert declared.project.folders == ("lib", "")
    assert "old = old.cli:main" in declared.project.entry_points


def test_setup_py_is_read_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    text = f"""
import pathlib
from setuptools import setup
pathlib.Path({str(marker)!r}).touch()
TESTS = ["pytest"]
setup(
    name="scripted",
    version=open("VERSION").read(),
    install_requires=["six"] + ["attrs>=20"],
    extras_require={{"test": TESTS, "all": compute()}},
    entry_points={{"console_scripts": ["scripted=scripted:main"]}},
)
"""

    declared = detect(tmp_path, {"setup.py": text})

    assert names(declared) == ["attrs>=20", "pytest", "six"]
    assert not marker.exists()


def test_computed_requirements_are_named_in_the_error(tmp_path: Path) -> None:
    text = 'from setuptools import setup\nsetup(name="x", install_requires=read("req.txt"))\n'

    with pytest.raises(PackageError, match=r"setup\.py: install_requires"):
        detect(tmp_path, {"setup.py": text})

    assert names(detect(tmp_path, {"requirements.txt": "six\n"})) == ["six"]


def test_tox_counts_only_if_nothing_else_names_tests(tmp_path: Path) -> None:
    tox = "[testenv]\ndeps =\n    pytest\n    py39: old\n    {env:X}\n    freezegun\n"
    project = '[project]\nname = "a"\nversion = "1"\n'

    assert names(detect(tmp_path, {"tox.ini": tox, "pyproject.toml": project})) == [
        "freezegun",
        "pytest",
    ]
    with_group = f'{project}[dependency-groups]\ntest = ["hypothesis"]\n'
    assert names(detect(tmp_path, {"pyproject.toml": with_group})) == ["hypothesis"]


@pytest.mark.parametrize("name", ["pyproject.toml", "uv.lock", "setup.cfg", "requirements.txt"])
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"[" * 5000,
        b"a = " + b"[" * 3000,
        b"[project]\nname = 3\n[[package]]\nname = 1\n",
        b"[project]\nname = 'a\\nb'\n",
        b"[dependency-groups]\ntest = [{include-group = 'test'}]\n",
    ],
)
def test_hostile_files_end_in_an_error_of_assay_or_nothing(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with suppress(AssayError):
        detect_environment(ProjectFiles(tmp_path))


def test_a_link_out_of_the_project_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("six\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").symlink_to(outside)

    with pytest.raises(PackageError, match="link that leads out"):
        detect_environment(ProjectFiles(folder))
