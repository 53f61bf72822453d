"""`POST /v1/certificates/check`: check a certificate without running anything."""

from typing import Literal

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from assay.contracts.errors import JournalError
from assay.server.api.dependencies import ReadAccess
from assay.server.api.problems import documented
from assay.server.api.schemas.sessions import text_of
from assay.storage.certificates import certificate_of

router = APIRouter(prefix="/v1/certificates", tags=["runs"], responses=documented())


class CertificateShape(BaseModel):
    """Content of a certificate, and whether its signature is valid."""

    signature: Literal["valid", "invalid"]
    key: str | None = Field(default=None, description="Public half of the key that signed it")
    run: str | None = None
    goal: str | None = None
    grade: str | None = None
    issued_at: str | None = None
    model: str | None = None
    files: list[str] = Field(default_factory=list[str])
    note: str = Field(description="What this does and does not mean")


_MODIFIED = "The certificate was modified after it was signed."
_VALID = (
    "It is what was signed with this key. Whether the files are still those, and pass, "
    "`assay verify` finds out."
)


@router.post(
    "/check",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    },
)
async def check_certificate(request: Request, caller: ReadAccess) -> CertificateShape:
    """Check the signature of a certificate in the request body."""
    del caller
    content = await request.body()
    try:
        found = await to_thread.run_sync(certificate_of, content, "the body")
    except JournalError:
        return CertificateShape(signature="invalid", note=_MODIFIED)
    return CertificateShape(
        signature="valid",
        key=found.key,
        run=found.run,
        goal=text_of(found.goal),
        grade=found.grade.value,
        issued_at=found.issued_at,
        model=text_of(found.model),
        files=[text_of(str(path)) for path in found.files],
        note=_VALID,
    )
