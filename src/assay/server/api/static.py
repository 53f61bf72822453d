"""The web page: its own files, with a content security policy against foreign code."""

import mimetypes
from hashlib import sha256
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

from fastapi import APIRouter, Request, Response

from assay.server.api.field_types import workspace_path
from assay.server.errors import not_found

router = APIRouter(include_in_schema=False)

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_MISSING: Final = (
    "<!doctype html><title>Assay</title><p>This installation has no web page. "
    "The API is described at <a href=/docs>/docs</a>."
)


@router.get("/")
async def index(request: Request) -> Response:
    """Serve the page."""
    return _file(request, PurePosixPath("index.html"))


@router.get("/static/{path:path}")
async def part(request: Request, path: str) -> Response:
    """Serve a file of the page."""
    return _file(request, workspace_path(path))


def _file(request: Request, path: PurePosixPath) -> Response:
    place = resources.files("assay.server").joinpath("web").joinpath(*path.parts)
    headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
    if not place.is_file():
        if path.name == "index.html":
            return Response(_MISSING, media_type="text/html", headers=headers)
        raise not_found("file", str(path))
    content = place.read_bytes()
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    headers["etag"] = tag
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers=headers)
