"""Tell missing Python packages from modules that the project itself lacks."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.workspace import Tree

MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_DECLARATIONS: Final = re.compile(
    r"pyproject\.toml|setup\.(?:py|cfg)|tox\.ini|Pipfile|environment\.ya?ml|.*requirements.*\.(?:txt|in)"
)
_DISTRIBUTIONS: Final = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "jwt": "PyJWT",
    "PIL": "pillow",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
# Names that no project uses for its own modules.
_NAMES: Final = """
aiohttp anyio arrow attr attrs babel boto3 click cryptography cython django
docutils faker fastapi flask freezegun greenlet grpc httpx hypothesis isodate
jinja2 jsonschema lxml markupsafe matplotlib mock msgpack mypy nose numba numpy
orjson packaging pandas paramiko parameterized peewee pendulum polars psutil
psycopg2 pyarrow pydantic pygments pymongo pyparsing pytest_asyncio
pytest_benchmark pytest_mock pytz redis regex requests requests_mock responses
respx rich scipy seaborn setuptools simplejson six sqlalchemy starlette structlog
sympy tabulate termcolor testfixtures toml tomlkit torch tornado tqdm trio trustme
twisted typeguard typer typing_extensions ujson urllib3 uvicorn werkzeug xmltodict
yarl zstandard
"""
_WELL_KNOWN: Final = frozenset(_NAMES.split()) | frozenset(_DISTRIBUTIONS)


def missing_modules(text: str) -> Iterator[str]:
    """Yield the top-level names of the modules that could not be imported, from a message."""
    for name in MODULE.findall(text):
        yield name.partition(".")[0]


def is_third_party(name: str, tree: Tree) -> bool:
    """Whether a module is known to come from a package that is not part of the project."""
    if _is_of_the_project(name, tree):
        return False
    return name in _WELL_KNOWN or _is_declared(name, tree)


def distribution_of(name: str) -> str:
    """Return the name of the package that provides a module."""
    return _DISTRIBUTIONS.get(name, name)


def is_named(name: str, statement: str) -> bool:
    """Whether a text has this name as a word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", statement, re.IGNORECASE) is not None


def _is_of_the_project(name: str, tree: Tree) -> bool:
    """Whether the workspace has a module or package of this name, or has this name itself."""
    for path in tree.files:
        if path.stem == name or name in path.parts[:-1]:
            return True
    own = re.compile(rf"""^\s*name\s*=\s*["']?{_spelling(name)}["']?\s*$""", re.MULTILINE)
    return any(own.search(text) for text in _declarations(tree))


def _is_declared(name: str, tree: Tree) -> bool:
    pattern = re.compile(rf"(?<![\w.-]){_spelling(name)}(?![\w-])", re.IGNORECASE)
    return any(pattern.search(text) for text in _declarations(tree))


def _declarations(tree: Tree) -> Iterable[str]:
    for path in tree.files:
        if len(path.parts) <= len(PurePosixPath("requirements/test.txt").parts) and (
            _DECLARATIONS.fullmatch(path.name) or path.parent.name == "requirements"
        ):
            yield tree.text(path) or ""


def _spelling(name: str) -> str:
    return "[-_.]".join(map(re.escape, name.split("_")))
