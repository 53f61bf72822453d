"""The FastAPI application: routers, error handlers, and the request guard around them.

Also the web page, with a content security policy against foreign code, and the API reference at
`/docs`, `/redoc` and `/openapi.json`, without external resources.
"""

import mimetypes
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from assay.contracts.errors import AssayError
from assay.server.api import keys, memory, monitoring, openai_compat, runs, sessions
from assay.server.api.dependencies import identify
from assay.server.api.middleware import RequestCompleted, RequestGuard
from assay.server.api.monitoring import Metrics
from assay.server.api.problems import (
    OpenAIError,
    Problem,
    TurnFailedError,
    on_assay_error,
    on_http_error,
    on_mistake,
    on_turn_failed,
    on_wrong_request,
)
from assay.server.api.schemas import workspace_path
from assay.server.app_state import ServerState
from assay.server.errors import not_found

docs_router = APIRouter(include_in_schema=False)

_DOCS_PARTS: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
    "favicon.png": "image/png",
}
_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; worker-src blob:; font-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Policy for pages with inline scripts and styles; no text in them comes from a user."""


@docs_router.get("/docs")
async def swagger() -> Response:
    """Show the API reference as Swagger UI."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Assay",
        swagger_js_url="/docs/parts/swagger-ui-bundle.js",
        swagger_css_url="/docs/parts/swagger-ui.css",
        swagger_favicon_url="/docs/parts/favicon.png",
    )
    page.headers["content-security-policy"] = _DOCS_POLICY
    return page


@docs_router.get("/redoc")
async def redoc() -> Response:
    """Show the API reference as ReDoc."""
    page = get_redoc_html(
        openapi_url="/openapi.json",
        title="Assay",
        redoc_js_url="/docs/parts/redoc.standalone.js",
        redoc_favicon_url="/docs/parts/favicon.png",
        with_google_fonts=False,
    )
    page.headers["content-security-policy"] = _DOCS_POLICY
    return page


@docs_router.get("/docs/parts/{name}")
async def docs_part(name: str) -> Response:
    """Return a script or style of these pages from its package."""
    if name not in _DOCS_PARTS:
        raise not_found("file", name)
    content = resources.files("fastapi_offline").joinpath("static", name).read_bytes()
    headers = {"cache-control": "max-age=86400"}
    return Response(content, media_type=_DOCS_PARTS[name], headers=headers)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with shared definitions of problems and API keys."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(
        title="Assay",
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    parts: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = parts.setdefault("schemas", {})
    for shape in (Problem, OpenAIError):
        described = shape.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(described.pop("$defs", {}))
        schemas[shape.__name__] = described
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    app.openapi_schema = document
    return document


page_router = APIRouter(include_in_schema=False)

_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_NO_PAGE: Final = (
    "<!doctype html><title>Assay</title><p>This installation has no web page. "
    "The API is described at <a href=/docs>/docs</a>."
)


@page_router.get("/")
async def index(request: Request) -> Response:
    """Serve the page."""
    return _page_file(request, PurePosixPath("index.html"))


@page_router.get("/static/{path:path}")
async def page_file(request: Request, path: str) -> Response:
    """Serve a file of the page."""
    return _page_file(request, workspace_path(path))


def _page_file(request: Request, path: PurePosixPath) -> Response:
    file = resources.files("assay.server").joinpath("web").joinpath(*path.parts)
    headers = {"content-security-policy": _PAGE_POLICY, "cache-control": "no-cache"}
    if not file.is_file():
        if path.name == "index.html":
            return Response(_NO_PAGE, media_type="text/html", headers=headers)
        raise not_found("file", str(path))
    content = file.read_bytes()
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    headers["etag"] = tag
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers=headers)


_ABOUT: Final = (
    "A coding agent that does not take the model's word for it. Errors are "
    "`application/problem+json`; every answer names its request in `X-Request-Id`."
)


def create_app(server: ServerState, metrics: Metrics) -> FastAPI:
    """Build the application for an open server state."""
    app = FastAPI(title="Assay", version="1", description=_ABOUT, docs_url=None, redoc_url=None)
    app.state.server = server
    app.state.metrics = metrics
    for router in (
        keys.me_router,
        sessions.router,
        runs.router,
        runs.certificates_router,
        memory.router,
        sessions.chat_router,
        openai_compat.router,
        keys.router,
        monitoring.health_router,
        monitoring.metrics_router,
        docs_router,
        page_router,
    ):
        app.include_router(router)
    app.add_exception_handler(AssayError, on_assay_error)
    app.add_exception_handler(TurnFailedError, on_turn_failed)
    app.add_exception_handler(RequestValidationError, on_wrong_request)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_mistake)

    app.openapi = partial(openapi_document, app)
    # Build it now, since it takes a third of a second, and the first client would wait.
    app.openapi()
    return app


def guarded(app: FastAPI, on_completed: Callable[[RequestCompleted], None]) -> ASGIApp:
    """Wrap an application in the request guard, with CORS between them if origins are set."""
    server: ServerState = app.state.server
    serve = server.settings.serve
    inner: ASGIApp = app
    if serve.cors_origins:
        inner = CORSMiddleware(
            app,
            allow_origins=serve.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return RequestGuard(inner, serve, partial(identify, server), on_completed)
