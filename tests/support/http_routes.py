"""Every operation of the HTTP API, read from the application itself."""

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from assay.server.api.app import create_app
from assay.server.api.monitoring import Metrics

METHODS = frozenset({"get", "post", "put", "patch", "delete"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    takes_something: bool
    """Whether there is anything in a request that could be wrong."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@cache
def operations() -> tuple[Operation, ...]:
    """Return all that the OpenAPI document names."""
    document = create_app(cast("Any", None), Metrics()).openapi()
    return tuple(
        Operation(method.upper(), path, bool(fields.keys() & {"parameters", "requestBody"}))
        for path, item in document["paths"].items()
        for method, fields in item.items()
        if method in METHODS
    )
