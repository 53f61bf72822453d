"""Settings of the sandbox backends Docker and E2B, for `assay.settings.load`."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from assay.settings.types import HttpUrl, Packages, Section


class DockerSettings(Section):
    """Settings of the Docker backend."""

    socket: Annotated[str, Field(min_length=1)] = "/var/run/docker.sock"
    """Socket path, or an address as in DOCKER_HOST, which applies if this is unset."""
    base_image: Annotated[str, Field(pattern=r"^[\w./:@-]+$")] = "python:3.12-slim"
    """Base image of `assay-python`; it must contain Python 3.11 or newer."""
    packages: Packages = ()
    """Python packages to install in the image, in addition to the default ones."""
    runtime: Literal["", "runsc"] = ""
    """`runsc` is gVisor, the same as the backend `docker+runsc`."""
    spares: Annotated[int, Field(ge=0, le=16)] = 1
    """Number of warm containers."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Number of processors for a container."""


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError("an absolute path is needed")
    return path


class E2BSettings(Section):
    """Settings of the E2B backend."""

    api_key: SecretStr | None = Field(default=None, repr=False)
    """From `E2B_API_KEY` or the file of keys. Not allowed in the settings file."""
    template: Annotated[str, Field(min_length=1)] = "code-interpreter-v1"
    timeout_s: Annotated[float, Field(ge=30, le=86_400)] = 300.0
    """Maximum lifetime of a sandbox after Assay stops to renew it."""
    user: Annotated[str, Field(min_length=1)] = "user"
    """User account that runs programs."""
    workspace: Annotated[PurePosixPath, AfterValidator(_absolute)] = PurePosixPath("/app")
    domain: str = ""
    """Domain of a self-hosted service; unset: E2B's."""
    api_url: HttpUrl | None = None
    """Unset: derived from the domain."""
    sandbox_url: HttpUrl | None = None
