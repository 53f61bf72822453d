"""`/docs`, `/redoc` and `/openapi.json`: the API reference, without external resources."""

from importlib import resources
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi

from assay.server.api.problems import OpenAIError, Problem
from assay.server.errors import not_found

router = APIRouter(include_in_schema=False)

_PARTS: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
    "favicon.png": "image/png",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; worker-src blob:; font-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Policy for pages with inline scripts and styles; no text in them comes from a user."""


@router.get("/docs")
async def swagger() -> Response:
    """Show the API reference as Swagger UI."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Assay",
        swagger_js_url="/docs/parts/swagger-ui-bundle.js",
        swagger_css_url="/docs/parts/swagger-ui.css",
        swagger_favicon_url="/docs/parts/favicon.png",
    )
    page.headers["content-security-policy"] = _POLICY
    return page


@router.get("/redoc")
async def redoc() -> Response:
    """Show the API reference as ReDoc."""
    page = get_redoc_html(
        openapi_url="/openapi.json",
        title="Assay",
        redoc_js_url="/docs/parts/redoc.standalone.js",
        redoc_favicon_url="/docs/parts/favicon.png",
        with_google_fonts=False,
    )
    page.headers["content-security-policy"] = _POLICY
    return page


@router.get("/docs/parts/{name}")
async def part(name: str) -> Response:
    """Return a script or style of these pages from its package."""
    if name not in _PARTS:
        raise not_found("file", name)
    content = resources.files("fastapi_offline").joinpath("static", name).read_bytes()
    headers = {"cache-control": "max-age=86400"}
    return Response(content, media_type=_PARTS[name], headers=headers)


def describe(app: FastAPI) -> dict[str, Any]:
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
