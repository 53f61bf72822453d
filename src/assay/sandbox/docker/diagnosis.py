"""Docker section of `assay doctor`: checks each part and reports cause and fix."""

from assay.contracts.errors import AssayError, require
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.sections import DockerSettings

with require("the Docker backend", extra="docker"):
    from assay.sandbox.docker.engine import Engine, EngineFacts, open_engine
    from assay.sandbox.docker.image import find_image
    from assay.sandbox.docker.labels import list_containers
    from assay.sandbox.docker.security import GVISOR

ENGINE = "docker engine"
RUNTIME = "gVisor runtime"
IMAGE = "docker image"
CONTAINERS = "docker containers"


async def examine_docker(settings: DockerSettings, *, needed: bool) -> tuple[Finding, ...]:
    """Check a Docker engine. A missing engine is a problem only if the settings need it."""
    try:
        async with open_engine(settings.socket) as engine:
            facts = await engine.facts()
            return (
                _engine(facts),
                _runtime(facts),
                await _image(engine, settings),
                await _containers(engine),
            )
    except AssayError as error:
        status = "failed" if needed else "info"
        fix = error.hint if needed else ""
        return (Finding(name=ENGINE, status=status, detail=str(error), fix=fix),)


def _engine(facts: EngineFacts) -> Finding:
    told = f"version {facts.version}, {facts.processors} processors, {facts.memory_bytes >> 20} MB"
    return Finding(name=ENGINE, status="ok", detail=told)


def _runtime(facts: EngineFacts) -> Finding:
    if GVISOR in facts.runtimes:
        return Finding(name=RUNTIME, status="ok", detail=f"{GVISOR} is registered")
    return Finding(
        name=RUNTIME,
        status="info",
        detail=f"the engine knows {', '.join(facts.runtimes)} only, so `docker+runsc` is not there",
    )


async def _image(engine: Engine, settings: DockerSettings) -> Finding:
    found = await find_image(engine, settings)
    if found.id is not None:
        return Finding(name=IMAGE, status="ok", detail=f"{found.tag}, {found.id}")
    if found.tag:
        told = f"{found.tag} will be built when it is first needed"
        return Finding(name=IMAGE, status="info", detail=told)
    return Finding(
        name=IMAGE,
        status="info",
        detail=f"the base image {settings.base_image!r} is not there; it is fetched when needed",
    )


async def _containers(engine: Engine) -> Finding:
    found = await list_containers(engine)
    left = [record for record in found if record.state == "orphaned"]
    told = f"{len(found) - len(left)} in use, {len(left)} left behind"
    fix = "run `assay sandbox clean`" if left else ""
    return Finding(name=CONTAINERS, status="info", detail=told, fix=fix)
