"""What can be set for single ways of isolating; `assay.settings.load` brings them together."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from assay.settings.types import HttpUrl, Packages, Section


class DockerSettings(Section):
    """Containers of a Docker engine."""

    socket: Annotated[str, Field(min_length=1)] = "/var/run/docker.sock"
    """A path, or an address as in DOCKER_HOST, which is used if nothing is said here."""
    base_image: Annotated[str, Field(pattern=r"^[\w./:@-]+$")] = "python:3.12-slim"
    """What `assay-python` is built on; Python 3.11 or newer has to be in it."""
    packages: Packages = ()
    """Python packages that are installed in it besides the usual ones."""
    runtime: Literal["", "runsc"] = ""
    """`runsc` is gVisor, and the same as the backend `docker+runsc`."""
    spares: Annotated[int, Field(ge=0, le=16)] = 1
    """How many containers wait ready."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Processors that a container may use."""


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError("an absolute path is needed")
    return path


class E2BSettings(Section):
    """Virtual machines at E2B."""

    api_key: SecretStr | None = Field(default=None, repr=False)
    """From `E2B_API_KEY`, or from the file of keys. Not for the settings file."""
    template: Annotated[str, Field(min_length=1)] = "code-interpreter-v1"
    timeout_s: Annotated[float, Field(ge=30, le=86_400)] = 300.0
    """How long a sandbox lives on at most when nobody looks after it any more."""
    user: Annotated[str, Field(min_length=1)] = "user"
    """Whose rights programs have in it."""
    workspace: Annotated[PurePosixPath, AfterValidator(_absolute)] = PurePosixPath("/app")
    domain: str = ""
    """Of a service of one's own; unset: that of E2B."""
    api_url: HttpUrl | None = None
    """Unset: follows from the domain."""
    sandbox_url: HttpUrl | None = None
