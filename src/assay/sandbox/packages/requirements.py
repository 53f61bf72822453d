"""Valid package requests: a name and a version, never a location; suggestions for unknown names."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from assay.contracts.errors import PackageError

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE: Final = r"(?:===|==|!=|<=|>=|~=|<|>)\s*[A-Za-z0-9._+!*-]+"
_REQUIREMENT: Final = re.compile(
    rf"(?P<name>{_NAME})\s*(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\])?"
    rf"\s*(?P<versions>(?:{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?)"
    r"(?P<hashes>(?:\s+--hash=[a-z0-9]+:[0-9a-f]+)*)"
)
_EXACT: Final = re.compile(r"==[^*,]+")
_MOST: Final = 1000
_LONGEST: Final = 200
_LONGEST_WITH_HASHES: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requested package in a canonical form that can be compared."""

    name: str
    extras: tuple[str, ...]
    versions: str
    hashes: tuple[str, ...] = ()
    """Digests of its files, `sha256:…`; with them, the version is exact."""

    @property
    def exact(self) -> bool:
        """Whether it always resolves to the same version."""
        return bool(_EXACT.fullmatch(self.versions))

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        hashes = (f"--hash={value}" for value in self.hashes)
        return " ".join((f"{self.name}{extras}{self.versions}", *hashes))


def parse_requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Parse requested packages; returns them sorted, without duplicates.

    Raises:
        PackageError: If an entry is not a name with an optional version.
    """
    if len(texts) > _MOST:
        raise PackageError(f"{len(texts)} packages are more than a sandbox can have ({_MOST})")
    found = {parse_requirement(text) for text in texts}
    return tuple(sorted(found, key=str))


def parse_requirement(text: str) -> Requirement:
    """Parse one requirement; raises the errors of `parse_requirements`."""
    short = len(text.partition(" --hash=")[0]) <= _LONGEST
    fits = short and len(text) <= _LONGEST_WITH_HASHES
    matched = _REQUIREMENT.fullmatch(text.strip()) if fits else None
    hashes = sorted(re.findall(r"--hash=(\S+)", matched["hashes"])) if matched else []
    if matched is None or (hashes and not _EXACT.fullmatch(re.sub(r"\s", "", matched["versions"]))):
        raise PackageError(
            f"not a package and a version: {text[:_LONGEST]!r}",
            hint="write requests, requests==2.32.* or uvicorn[standard]>=0.30; addresses, paths, "
            "options and markers are not taken",
        )
    extras = {canonical_name(extra) for extra in re.split(r"[\s,]+", matched["extras"] or "")}
    clauses = (re.sub(r"\s", "", clause) for clause in matched["versions"].split(","))
    return Requirement(
        name=canonical_name(matched["name"]),
        extras=tuple(sorted(extras - {""})),
        versions=",".join(sorted(clauses)),
        hashes=tuple(hashes),
    )


def canonical_name(name: str) -> str:
    """Return the canonical name, which is equal for `Foo.Bar`, `foo_bar` and `foo-bar`."""
    return re.sub(r"[-_.]+", "-", name).lower()


_NAMED_DIFFERENTLY: Final = {
    "bs4": "beautifulsoup4",
    "crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "pil": "pillow",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Modules whose packages have a different name."""
_OFTEN_ASKED_FOR: Final = [
    "aiohttp",
    "anyio",
    "arrow",
    "attrs",
    "beautifulsoup4",
    "black",
    "boto3",
    "cachetools",
    "certifi",
    "chardet",
    "click",
    "cryptography",
    "dask",
    "django",
    "duckdb",
    "faker",
    "fastapi",
    "flask",
    "gensim",
    "gitpython",
    "grpcio",
    "httpx",
    "hypothesis",
    "ipython",
    "jinja2",
    "joblib",
    "jsonschema",
    "lightgbm",
    "loguru",
    "lxml",
    "markdown",
    "matplotlib",
    "more-itertools",
    "mypy",
    "networkx",
    "nltk",
    "numba",
    "numpy",
    "openai",
    "opencv-python",
    "openpyxl",
    "orjson",
    "pandas",
    "paramiko",
    "pillow",
    "playwright",
    "plotly",
    "polars",
    "protobuf",
    "psutil",
    "psycopg2-binary",
    "pyarrow",
    "pycryptodome",
    "pydantic",
    "pygments",
    "pyjwt",
    "pymongo",
    "pymysql",
    "pyparsing",
    "pypdf",
    "pytest",
    "python-dateutil",
    "python-docx",
    "python-dotenv",
    "pytz",
    "pyyaml",
    "pyzmq",
    "rapidfuzz",
    "redis",
    "regex",
    "reportlab",
    "requests",
    "rich",
    "ruff",
    "scikit-image",
    "scikit-learn",
    "scipy",
    "scrapy",
    "seaborn",
    "selenium",
    "setuptools",
    "shapely",
    "six",
    "spacy",
    "sqlalchemy",
    "starlette",
    "statsmodels",
    "sympy",
    "tabulate",
    "tenacity",
    "tensorflow",
    "tiktoken",
    "tokenizers",
    "toml",
    "toolz",
    "torch",
    "tornado",
    "tqdm",
    "transformers",
    "trio",
    "typer",
    "typing-extensions",
    "urllib3",
    "uvicorn",
    "websockets",
    "werkzeug",
    "xgboost",
    "xlsxwriter",
    "xmltodict",
    "zstandard",
]


def package_of_module(module: str) -> str:
    """Return the package of a module, if Assay knows it."""
    return _NAMED_DIFFERENTLY.get(module.lower(), module)


def likely_name(name: str) -> str:
    """Return the package that was probably meant; empty if no name is similar."""
    wanted = canonical_name(name)
    if known := _NAMED_DIFFERENTLY.get(wanted):
        return known
    close = difflib.get_close_matches(wanted, _OFTEN_ASKED_FOR, n=1, cutoff=0.75)
    return close[0] if close and close[0] != wanted else ""
