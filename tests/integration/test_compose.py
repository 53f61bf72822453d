"""The services of compose.yaml: built, started, hardened, used over the network, and gone again."""

import json
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from assay.contracts.execution import Isolation, Limits, PythonCode
from assay.contracts.ports import SandboxBackend
from assay.sandbox.docker.labels import OWNER_PLACE, place
from assay.settings.load import load_settings
from tests.support.compose import (
    ROOT,
    SERVICES,
    Deployment,
    build_executor,
    docker,
    free_ports,
    logs_of,
    open_deployment,
)
from tests.support.docker import containers, open_docker_backend
from tests.support.eventually import eventually
from tests.support.executors import open_client
from tests.support.mcp_servers import http_client, values

# Images may have to be built first.
pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]
ENGINE = "/var/run/docker.sock"
PROBE = """
import os, socket
seen = []
for path in ("/run/secrets/server.key", "/run/secrets/executor-tokens", "/var/lib/assay",
             "/proc/1/environ", "/proc/1/root/run/secrets/server.key"):
    try:
        seen.append(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10))
    except OSError:
        pass
try:
    seen.append(socket.create_connection(("mcp", 7101), 2))
except OSError:
    pass
print(seen)
"""


@pytest.fixture(scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    with open_deployment(tmp_path_factory.mktemp("compose")) as running:
        well = await eventually(lambda: all(map(running.is_well, SERVICES)), within_s=180)
        assert well, [running.container(service)["State"] for service in SERVICES]
        yield running
    for kind in ("container", "network", "volume"):
        assert running.left(kind) == [], f"a {kind} is left"


def open_executor(deployment: Deployment, port: int = 0):  # noqa: ANN201 - see open_client
    secrets = deployment.secrets
    return open_client(
        port or deployment.ports["ASSAY_EXECUTOR_PORT"],
        ca=secrets / "ca.crt",
        cert=secrets / "client-operator.crt",
        key=secrets / "client-operator.key",
        token_file=secrets / "operator.token",
    )


async def run_python(backend: SandboxBackend, source: str) -> str:
    async with backend.open_sandbox(Limits()) as sandbox:
        result = await sandbox.run(PythonCode(source=source.encode()))
    assert result.isolation is backend.isolation
    return result.stdout + result.stderr


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_is_hardened(service: str, deployment: Deployment) -> None:
    found = deployment.container(service)
    host = found["HostConfig"]

    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert 0 < host["PidsLimit"] <= 2048
    assert 0 < host["Memory"] == host["MemorySwap"]
    assert found["Config"]["User"].split(":")[0] not in {"", "0"}
    addresses = {each["HostIp"] for ports in host["PortBindings"].values() for each in ports}
    assert addresses == {"127.0.0.1"}
    # Secrets are files, and none of them can be changed from inside.
    assert not any(
        "token" in value.lower() and "/" not in value for value in found["Config"]["Env"]
    )
    binds = [mount for mount in found["Mounts"] if mount["Type"] == "bind"]
    assert binds
    assert all(mount["Destination"].startswith("/run/secrets/") for mount in binds)
    assert not any(mount["RW"] for mount in binds)


async def test_a_program_runs_over_mutual_tls_with_a_token(deployment: Deployment) -> None:
    async with open_executor(deployment) as remote:
        said = await run_python(remote, "import pandas; print(pandas.Series([20, 22]).sum())")

    assert said == "42\n"
    # What a container gives that is hardened like this; see docs/reference/compose.md.
    assert remote.isolation is Isolation.RESTRICTED


async def test_a_program_in_the_container_reaches_nothing_of_it(deployment: Deployment) -> None:
    async with open_executor(deployment) as remote:
        assert await run_python(remote, PROBE) == "[]\n"


async def test_the_mcp_servers_have_programs_run_by_the_executor(deployment: Deployment) -> None:
    token = (deployment.secrets / "operator.mcp-token").read_text().strip()
    files = f"http://127.0.0.1:{deployment.ports['ASSAY_MCP_FILES_PORT']}/mcp"
    programs = f"http://127.0.0.1:{deployment.ports['ASSAY_MCP_PROGRAMS_PORT']}/mcp"
    async with http_client(files, token=token) as client:
        await client.call_tool("sandbox_write_file", {"path": "number.txt", "content": "42"})
    async with http_client(programs, token=token) as client:
        code = {"code": "print(int(open('number.txt').read()) + 1)"}
        ran = values(await client.call_tool("sandbox_run_python", code))
    async with httpx2.AsyncClient() as stranger:
        refused = await stranger.post(programs, json={})

    assert (ran["stdout"], ran["exit_code"], ran["isolation"]) == ("43\n", 0, "restricted")
    assert refused.status_code == 401


async def test_the_api_lets_in_who_has_a_key(deployment: Deployment) -> None:
    address = f"http://127.0.0.1:{deployment.ports['ASSAY_API_PORT']}"
    async with httpx2.AsyncClient(base_url=address, timeout=60) as http:
        ready = await http.get("/readyz")
        stranger = await http.get("/v1/sessions")
        headers = {"Authorization": f"Bearer {deployment.api_key}"}
        known = await http.get("/v1/sessions", headers=headers)

    assert ready.status_code == 200
    assert stranger.status_code == 401
    assert known.status_code == 200, known.text


async def test_what_was_executed_is_in_the_audit_log(deployment: Deployment) -> None:
    async with open_executor(deployment) as remote:
        await run_python(remote, "secret = 'hunter2'")
    container = deployment.container("executor")["Id"]

    path = "/var/lib/assay/.local/state/assay/executor/audit.jsonl"
    log = docker("exec", container, "cat", path)

    clients = {json.loads(line).get("client") for line in log.splitlines()}
    assert "token:operator" in clients
    assert "hunter2" not in log


async def test_the_image_of_the_executor_has_no_agent_and_no_provider(
    deployment: Deployment,
) -> None:
    image = deployment.container("executor")["Image"]
    names = [
        "assay.agent",
        "assay.models",
        "assay.runs",
        "openai",
        "anthropic",
        "google.genai",
    ]
    code = f"""
import importlib.util
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print([name for name in {names} if found(name)], found("assay.sandbox"))
"""
    asked = ["run", "--rm", "--network=none", "--entrypoint=python3", image, "-c", code]

    assert docker(*asked) == "[] True\n"


@asynccontextmanager
async def open_container(
    deployment: Deployment, image: str, options: Sequence[str], flags: Sequence[str] = ()
) -> AsyncGenerator[int]:
    """Run an executor in a container of its own, hardened as in compose.yaml; yields its port."""
    owner = deployment.environment["ASSAY_UID"]
    port = free_ports(1)[0]
    container = docker(
        *("run", "--rm", "--detach", "--read-only", "--cap-drop=ALL", "--init"),
        *(f"--user={owner}", "--security-opt=no-new-privileges:true", "--pids-limit=2048"),
        *("--memory=3g", f"--publish=127.0.0.1:{port}:50051"),
        f"--network={deployment.project}_edge",
        *(f"--tmpfs=/run/assay:exec,mode=0700,uid={owner}", "--tmpfs=/tmp:exec,mode=1777"),
        *(f"--tmpfs=/var/lib/assay:mode=0700,uid={owner}",),
        *(f"--volume={deployment.secrets}:/certs:ro", *options, image),
        *("serve", "--host=0.0.0.0", "--cert=/certs/server.crt", "--key=/certs/server.key"),
        *("--client-ca=/certs/ca.crt", "--token-file=/certs/executor-tokens", *flags),
    ).strip()
    try:
        well = await eventually(lambda: "listening" in logs_of(container), within_s=60)
        assert well, logs_of(container)
        yield port
    finally:
        # It closes its sandboxes before it ends.
        docker("stop", "--time=30", container)


async def test_with_room_for_namespaces_programs_are_isolated(deployment: Deployment) -> None:
    """What deploy/compose.namespaces.yaml asks for, which older versions of compose do not know."""
    options = (
        f"--security-opt=seccomp={ROOT / 'deploy/seccomp.json'}",
        *("--security-opt=systempaths=unconfined", "--env=ASSAY_SANDBOX__ISOLATION=isolated"),
    )
    image = deployment.container("executor")["Image"]
    async with (
        open_container(deployment, image, options) as port,
        open_executor(deployment, port) as remote,
    ):
        said = await run_python(remote, PROBE + "print(os.getuid(), os.getpid() < 10)")

    assert remote.isolation is Isolation.ISOLATED
    assert said.startswith("[]\n")


async def test_an_executor_in_a_container_starts_sibling_containers(deployment: Deployment) -> None:
    """With the extra `docker` and the engine's socket; see docs/reference/docker.md."""
    image = "assay-executor-with-docker"
    build_executor(",docker", image)
    base = load_settings().sandbox.docker.base_image
    # Built here first: in the container, there is no package index.
    async with open_docker_backend("docker", warm_containers=0):
        pass
    group = (await anyio.Path(ENGINE).stat()).st_gid
    options = (
        *(f"--volume={ENGINE}:{ENGINE}", f"--group-add={group}"),
        *("--env=ASSAY_SANDBOX__BACKEND=docker", "--env=ASSAY_SANDBOX__DOCKER__WARM_CONTAINERS=0"),
        f"--env=ASSAY_SANDBOX__DOCKER__BASE_IMAGE={base}",
    )
    async with (
        open_container(deployment, image, options) as port,
        open_executor(deployment, port) as remote,
        remote.open_sandbox(Limits()) as sandbox,
    ):
        source = b"import os; print(6 * 7, os.path.exists('/var/run/docker.sock'))"
        result = await sandbox.run(PythonCode(source=source))
        # Other tests have containers too, but their owners are in the pid namespace of the host.
        siblings = set(containers()) - set(containers(label=f"{OWNER_PLACE}={place()}"))

    assert result.stdout == "42 False\n", result.stderr
    assert siblings
    assert not siblings & set(containers())


def test_the_image_with_the_extra_is_built_by_the_documented_command() -> None:
    asked = ["make", "--dry-run", "images", "EXECUTOR_EXTRAS=,docker"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)

    assert "--build-arg EXTRAS=,docker" in done.stdout
