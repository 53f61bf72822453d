"""The FastAPI application: routers, error handlers, and the request guard around them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from assay.contracts.errors import AssayError
from assay.server.api import (
    certificates,
    chat,
    docs,
    health,
    keys,
    me,
    memory,
    metrics,
    openai_compat,
    runs,
    sessions,
    static,
)
from assay.server.api.dependencies import identify
from assay.server.api.metrics import Metrics
from assay.server.api.middleware import GuardConfig, RequestCompleted, RequestGuard
from assay.server.api.problems import (
    TurnFailedError,
    on_assay_error,
    on_http_error,
    on_mistake,
    on_turn_failed,
    on_wrong_request,
)
from assay.server.app_state import ServerState

_ABOUT: Final = (
    "A coding agent that does not take the model's word for it. Errors are "
    "`application/problem+json`; every answer names its request in `X-Request-Id`."
)


def create_app(hosting: ServerState, counted: Metrics) -> FastAPI:
    """Build the application for an open server state."""
    app = FastAPI(title="Assay", version="1", description=_ABOUT, docs_url=None, redoc_url=None)
    app.state.hosting = hosting
    app.state.metrics = counted
    for module in (me, sessions, runs, certificates, memory, chat, openai_compat, keys):
        app.include_router(module.router)
    for module in (health, metrics, docs, static):
        app.include_router(module.router)
    app.add_exception_handler(AssayError, on_assay_error)
    app.add_exception_handler(TurnFailedError, on_turn_failed)
    app.add_exception_handler(RequestValidationError, on_wrong_request)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_mistake)

    def openapi() -> dict[str, Any]:
        return docs.describe(app)

    app.openapi = openapi
    # Build it now, since it takes a third of a second, and the first client would wait.
    app.openapi()
    return app


def guarded(app: FastAPI, on_answered: Callable[[RequestCompleted], None]) -> ASGIApp:
    """Wrap an application in the request guard, with CORS between them if origins are set."""
    hosting: ServerState = app.state.hosting
    serve = hosting.settings.serve
    rules = GuardConfig(
        names=serve.names,
        origins=serve.origins,
        body_bytes=serve.body_bytes,
        upload_bytes=serve.upload_bytes,
        patience_s=serve.patience_s,
        body_s=serve.body_s,
    )
    inner: ASGIApp = app
    if serve.origins:
        inner = CORSMiddleware(
            app,
            allow_origins=serve.origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return RequestGuard(inner, rules, partial(identify, hosting), on_answered)
