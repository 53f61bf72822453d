"""Source distributions: found by uv and downloaded with their hash; nothing of them is executed."""

import hashlib
import http.client
import re
import ssl
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from anyio import to_thread

from assay.contracts.errors import PackageError
from assay.sandbox.packages.requirements import Requirement
from assay.sandbox.packages.resolver import Resolver, index_environment, redacted
from assay.sandbox.packages.target import Target

_LARGEST_BYTES: Final = 512 << 20
_TIMEOUT_S: Final = 60.0
_CHUNK_BYTES: Final = 1 << 20
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+!-]*\.(?:tar\.gz|zip|tar\.bz2|tgz)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source distribution of an index."""

    name: str
    version: str
    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


async def find_source(
    resolver: Resolver, requirement: Requirement, target: Target, folder: Path
) -> Source:
    """Return the newest source distribution that fits a requirement.

    uv receives empty metadata for the package, so it has no reason to build it.

    Raises:
        PackageError: If there is none.
        IndexUnreachableError: If the index does not answer.
        MissingExtraError: If uv is not installed.
    """
    said = await resolver.describe_source(requirement, target, folder)
    try:
        listed = cast("list[dict[str, Any]]", tomllib.loads(said).get("packages") or [])
        package = next(one for one in listed if one.get("name") == requirement.name)
        sdist = package["sdist"]
        # uv writes paths relative to its lock.
        where = sdist.get("url") or f"file://{folder}/{sdist['path']}"
        source = Source(
            name=requirement.name,
            version=str(package["version"]),
            url=str(where),
            sha256=str(sdist["hashes"]["sha256"]),
        )
    except (tomllib.TOMLDecodeError, StopIteration, KeyError, TypeError, AttributeError) as error:
        raise PackageError(
            f"there is no source distribution of {requirement.name!r}",
            hint="ask for another version or package",
        ) from error
    if not _FILE_NAME.fullmatch(source.file_name) or not re.fullmatch(
        r"[0-9a-f]{64}", source.sha256
    ):
        raise PackageError(f"the source distribution of {requirement.name!r} has no usable name")
    return source


async def download_source(source: Source, environment: Mapping[str, str], folder: Path) -> Path:
    """Download a source distribution and check its hash; returns the file.

    Raises:
        PackageError: If it cannot be downloaded, or has another hash.
    """
    path = folder / source.file_name
    certificates = index_environment(environment).get("SSL_CERT_FILE")
    try:
        await to_thread.run_sync(partial(_download, source, path, certificates))
    except (OSError, urllib.error.URLError, http.client.HTTPException, ValueError) as error:
        raise PackageError(
            f"the source distribution of {source.name!r} cannot be downloaded: "
            f"{redacted(str(error))}",
            index_unreachable=True,
            hint="check the network, and the index that pip is set up to use",
        ) from error
    return path


def _download(source: Source, path: Path, certificates: str | None) -> None:
    if urlsplit(source.url).scheme not in {"https", "http", "file"}:
        raise ValueError("its address is neither a web address nor a file")
    context = ssl.create_default_context(cafile=certificates)
    digest, size_bytes = hashlib.sha256(), 0
    request = urllib.request.Request(source.url)  # noqa: S310 - the scheme was checked above
    with (
        urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as reply,  # noqa: S310 - as above
        path.open("wb") as file,
    ):
        while chunk := reply.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if size_bytes > _LARGEST_BYTES:
                raise ValueError(f"it has more than {_LARGEST_BYTES >> 20} MB")
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != source.sha256:
        raise ValueError("it has another hash than the index states")
