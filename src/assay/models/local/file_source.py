"""HTTP download of one file, continued where an earlier attempt broke off."""

import re
from collections.abc import Callable
from functools import partial as bind
from http.client import HTTPException, HTTPMessage, HTTPResponse
from threading import Thread
from typing import IO, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import anyio
from anyio import to_thread

from assay.models.local.partial_file import PartialFile, SourceError
from assay.models.local.weights import FileSource

_CHUNK_BYTES = 1 << 18
_RESUMES = 20
"""How often a connection may break; each one must have transferred something."""
_OK = 200
_PARTIAL_CONTENT = 206
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class _CarefulRedirects(HTTPRedirectHandler):
    """Follows redirects to any host, because the digest is verified, but never from HTTPS to HTTP.

    A hub redirects to a nearby server. The requests contain no secrets.
    """

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ({"https"} if req.type == "https" else {"http", "https"}):
            fp.close()
            raise SourceError(f"it sends us from {req.type} to {scheme}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


async def fetch_file(
    source: FileSource, file: PartialFile, on_bytes: Callable[[], None], *, silence_s: float
) -> None:
    """Complete the file.

    Raises:
        SourceError: If nothing arrives for `silence_s`, or the server has another file.
        StorageError: If the data cannot be written.
    """
    for _ in range(_RESUMES):
        begun = file.length
        try:
            await _read_on(source.url, file, on_bytes, silence_s)
        except (OSError, HTTPException) as error:
            if file.length == begun:
                raise SourceError(_in_words(error)) from error
        if file.complete:
            return
        if file.length == begun:
            raise SourceError("it ended before the file did")
    raise SourceError("it broke off too often")


async def _read_on(
    url: str, file: PartialFile, on_bytes: Callable[[], None], silence_s: float
) -> None:
    response = await _open(url, file.length, silence_s)
    try:
        await to_thread.run_sync(_agree_where_to_start, response, file)
        while chunk := await to_thread.run_sync(
            response.read, _CHUNK_BYTES, abandon_on_cancel=True
        ):
            await to_thread.run_sync(file.append, chunk)
            on_bytes()
    finally:
        # An abandoned read still uses the response, and closing waits for it.
        Thread(target=response.close, daemon=True).start()


async def _open(url: str, start: int, silence_s: float) -> HTTPResponse:
    request = Request(url, headers={"User-Agent": "assay"})  # noqa: S310 - the URL comes from Assay's table
    if start:
        request.add_header("Range", f"bytes={start}-")
    # The socket's timeout does not include name resolution.
    with anyio.fail_after(silence_s):
        opened = await to_thread.run_sync(
            bind(build_opener(_CarefulRedirects).open, request, timeout=silence_s),
            abandon_on_cancel=True,
        )
    # The opener is typed for all URL schemes; these are HTTP.
    return cast("HTTPResponse", opened)


def _agree_where_to_start(response: HTTPResponse, file: PartialFile) -> None:
    """Cut the file to the server's start position, if it is the same file."""
    if response.status == _PARTIAL_CONTENT:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != file.length or int(found[2]) != file.size_bytes:
            raise SourceError("it answered with another range, or of another file")
    elif response.status == _OK:
        if response.length not in {None, file.size_bytes}:
            raise SourceError(f"its file has {response.length} bytes, not {file.size_bytes}")
        file.cut(0)
    else:
        raise SourceError(f"it answered with status {response.status}")


def _in_words(error: OSError | HTTPException) -> str:
    if isinstance(error, HTTPError):
        error.close()
        return f"it answered with status {error.code}"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    reason = getattr(error, "reason", error)
    return f"it cannot be reached: {reason}"
