"""Fetching one file by HTTP, from where an earlier attempt broke off."""

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
"""How often a line may break; each time it must have brought something first."""
_OK = 200
_PARTIAL_CONTENT = 206
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class _CarefulRedirects(HTTPRedirectHandler):
    """Follows to any host, because bytes are judged by their digest, but not out of HTTPS.

    A hub answers with the address of a server near by. Nothing secret is sent to either of them.
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
    """Complete the file, or say why not.

    Raises:
        SourceError: If nothing came for `silence_s`, or it is not the file that was meant.
        StorageError: If what came cannot be written.
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
        # A read that was abandoned still holds the response, and closing it waits for that.
        Thread(target=response.close, daemon=True).start()


async def _open(url: str, start: int, silence_s: float) -> HTTPResponse:
    request = Request(url, headers={"User-Agent": "assay"})  # noqa: S310 - from our own table
    if start:
        request.add_header("Range", f"bytes={start}-")
    # The socket's own limit does not cover looking up the name.
    with anyio.fail_after(silence_s):
        opened = await to_thread.run_sync(
            bind(build_opener(_CarefulRedirects).open, request, timeout=silence_s),
            abandon_on_cancel=True,
        )
    # An opener is typed for every kind of address; these are HTTP.
    return cast("HTTPResponse", opened)


def _agree_where_to_start(response: HTTPResponse, file: PartialFile) -> None:
    """Make the file as long as where the server begins, if it is the same file at all."""
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
