"""What can be set for single ways of isolating; see `assay.settings`, where they come together."""

from typing import Annotated, Literal

from pydantic import Field

from assay.setting_kinds import Section


class DockerSettings(Section):
    """Containers of a Docker engine."""

    socket: Annotated[str, Field(min_length=1)] = "/var/run/docker.sock"
    """A path, or an address as in DOCKER_HOST, which is used if nothing is said here."""
    base_image: Annotated[str, Field(pattern=r"^[\w./:@-]+$")] = "python:3.12-slim"
    """What `assay-python` is built on; Python 3.11 or newer has to be in it."""
    packages: tuple[str, ...] = ()
    """Python packages that are installed in it besides the usual ones."""
    runtime: Literal["", "runsc"] = ""
    """`runsc` is gVisor, and the same as the backend `docker+runsc`."""
    spares: Annotated[int, Field(ge=0, le=16)] = 1
    """How many containers wait ready."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Processors that a container may use."""
