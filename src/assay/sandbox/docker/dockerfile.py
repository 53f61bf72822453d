"""Contents of the image `assay-python`: Dockerfiles, build contexts and tags.

Libraries and service are separate image layers, so that a new version of Assay does not need
another half gigabyte of libraries.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from assay.sandbox.docker.entrypoint import SHIPPED_LAYER, SHIPPED_LAYERS
from assay.sandbox.docker.labels import IMAGE_LABEL

REPOSITORY: Final = "assay-python"
PACKAGES: Final = (
    "anyio>=4.12",
    "matplotlib>=3.9",
    "numpy>=2.0",
    "openpyxl>=3.1",
    "pandas>=2.2",
    "protobuf>=7.35",
    "pyarrow>=21",
    "pytest>=9.0",
    "scikit-learn>=1.5",
    "seaborn>=0.13",
    "uv>=0.13",
    "xlrd>=2.0.1",
)
"""The packages that programs find installed and that the service needs."""
_VENV: Final = "/opt/assay/venv"
_SERVICE: Final = "/opt/assay/service"
_PYTHON: Final = f"{_VENV}/bin/python3"
_COMPILE: Final = f"{_PYTHON} -I -m compileall -qq --invalidation-mode unchecked-hash"
_FORMAT: Final = 1
_LONGEST_KEY: Final = 16

_SERVICE_PARTS: Final = ("__init__.py", "asyncx", "contracts", "sandbox")
"""The parts of the package `assay` that run in the container."""

ABOUT_TARGET: Final = (
    "import json; from dataclasses import asdict; "
    "from assay.sandbox.packages.target import own_target; "
    "print(json.dumps(asdict(own_target(json.loads(sys.argv[1])))))"
)
ABOUT_PYTHON: Final = (
    "import json, platform, sys; print(json.dumps({'version': sys.version_info[:2], "
    "'machine': platform.machine(), 'libc': platform.libc_ver()[0]}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePython:
    """The interpreter of a base image."""

    version: str
    """`3.11`."""
    machine: str
    libc: str

    @property
    def platform(self) -> str:
        """The platform name that uv uses."""
        libc = "gnu" if self.libc == "glibc" else "musl"
        return f"{self.machine}-unknown-linux-{libc}"


def packages_dockerfile(base: str, python: ImagePython) -> str:
    """Install the libraries on a base image, compile them and check that they can be imported."""
    site = f"{_VENV}/lib/python{python.version}/site-packages"
    return f"""FROM {base}
LABEL {IMAGE_LABEL}=packages
USER 0:0
RUN python3 -m venv --without-pip {_VENV}
COPY site {site}
COPY scripts {_VENV}/bin
COPY bin /usr/local/bin
RUN {_COMPILE} -j 0 {site}
RUN {_PYTHON} -I -c "import anyio, google.protobuf, openpyxl, pandas, pyarrow, seaborn, sklearn"
"""


def service_dockerfile(packages_image: str) -> str:
    """Add the service to the image with the libraries."""
    return f"""FROM {packages_image}
LABEL {IMAGE_LABEL}=service
COPY service {_SERVICE}
RUN {_COMPILE} {_SERVICE}
RUN mkdir -p /app /run/assay /opt/assay/layers
ENV PATH={_VENV}/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app
WORKDIR /app
USER 65532:65532
CMD ["python3"]
"""


def layer_dockerfile(image: str) -> str:
    """Add the packages that a sandbox requested to the complete image."""
    return f"""FROM {image}
LABEL {IMAGE_LABEL}=layer
COPY layer {SHIPPED_LAYERS}/{SHIPPED_LAYER}
"""


def layer_tag(image: str, key: str) -> str:
    """Return the tag of an image with packages: a digest of its contents."""
    content = f"{layer_dockerfile(image)}{key}"
    return f"{REPOSITORY}:with-{_key(content.encode())}"


def ask_service(source: str, *arguments: str) -> tuple[str, ...]:
    """Return the command for a few lines of Python that may import the service's modules."""
    find = f"import sys; sys.path.insert(0, {_SERVICE!r}); "
    return (_PYTHON, "-I", "-c", find + source, *arguments)


def packages_tag(base_id: str, packages: Sequence[str]) -> str:
    """Return the tag of the library image: a digest of everything known before the download."""
    words = [_FORMAT, base_id, sorted(packages), packages_dockerfile("", _ANY_PYTHON)]
    return f"{REPOSITORY}:packages-{_key(json.dumps(words).encode())}"


def service_tag(packages_image_tag: str, package: Path) -> str:
    """Return the tag of the complete image: a digest of everything that determines its contents."""
    digest = hashlib.sha256(f"{packages_image_tag}\n{service_dockerfile('')}".encode())
    for name, path in service_files(package):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{REPOSITORY}:{digest.hexdigest()[:_LONGEST_KEY]}"


_ANY_PYTHON: Final = ImagePython(version="", machine="", libc="")


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LONGEST_KEY]


def service_files(package: Path) -> Iterator[tuple[str, Path]]:
    """Yield the sources that run in the container, with their paths in the package folder."""
    for part in _SERVICE_PARTS:
        found = package / part
        paths = [found] if found.is_file() else sorted(found.rglob("*"))
        for path in paths:
            if path.suffix in {".py", ".toml"} and path.is_file():
                yield str(path.relative_to(package)), path


def write_packages_context(dockerfile: str, layer: Path, into: BinaryIO) -> None:
    """Write the context of the first image: libraries, build commands and uv."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for folder in ("site", "scripts", "bin"):
            _add_folder(archive, folder)
        for path in sorted(layer.rglob("*")):
            if not path.is_file():
                continue
            inner = path.relative_to(layer)
            if inner.parts[0] != "bin":
                _add_file(archive, f"site/{inner}", path)
            elif path.name in {"uv", "uvx"}:
                # Below /usr, where every program finds it.
                _add_file(archive, f"bin/{path.name}", path)
            else:
                _add_file(archive, f"scripts/{path.name}", path)


def write_service_context(dockerfile: str, package: Path, into: BinaryIO) -> None:
    """Write the context of the second image."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for name, path in service_files(package):
            _add_file(archive, f"service/assay/{name}", path)


def write_layer_context(dockerfile: str, layer: Path, into: BinaryIO) -> None:
    """Write the context of an image with packages: a layer of the package store."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for path in sorted(layer.rglob("*")):
            if path.is_file():
                _add_file(archive, f"layer/{path.relative_to(layer)}", path)


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    """No times and owners of this machine: the same content gives the same image."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    archive.addfile(_entry(name, len(content), 0o644), io.BytesIO(content))


def _add_folder(archive: tarfile.TarFile, name: str) -> None:
    entry = _entry(name, 0, 0o755)
    entry.type = tarfile.DIRTYPE
    archive.addfile(entry)


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    status = path.stat()
    mode = 0o755 if status.st_mode & 0o111 else 0o644
    with path.open("rb") as content:
        archive.addfile(_entry(name, status.st_size, mode), content)


# `-I`: the service never imports a file that a program wrote.
SERVICE_COMMAND: Final = ask_service("from assay.sandbox.docker.entrypoint import main; main()")
