"""The services of compose.yaml: built, started, hardened, used over the network, and gone again."""

import json
from collections.abc import AsyncGenerator

import httpx2
import pytest

from assay.contracts.execution import Isolation, Limits, PythonCode
from assay.contracts.ports import SandboxBackend
from tests.support.compose import (
    ROOT,
    SERVICES,
    Deployment,
    docker,
    free_ports,
    logs_of,
    open_deployment,
)
from tests.support.eventually import eventually
from tests.support.executors import open_client
from tests.support.mcp_servers import http_client, values

# Images may have to be built first.
pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]
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
        "assay.undertaking",
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


async def test_with_room_for_namespaces_programs_are_isolated(deployment: Deployment) -> None:
    """What deploy/compose.namespaces.yaml asks for, which older versions of compose do not know."""
    owner = deployment.environment["ASSAY_UID"]
    secrets = deployment.secrets
    port = free_ports(1)[0]
    flags = ["--cert", "/certs/server.crt", "--key", "/certs/server.key"]
    container = docker(
        *("run", "--rm", "--detach", "--read-only", "--cap-drop=ALL", "--init"),
        *(f"--user={owner}", "--security-opt=no-new-privileges:true", "--pids-limit=2048"),
        f"--security-opt=seccomp={ROOT / 'deploy/seccomp.json'}",
        *("--security-opt=systempaths=unconfined", f"--publish=127.0.0.1:{port}:50051"),
        f"--network={deployment.project}_edge",
        *(f"--tmpfs=/run/assay:exec,mode=0700,uid={owner}", "--tmpfs=/tmp:exec,mode=1777"),
        *(f"--tmpfs=/var/lib/assay:mode=0700,uid={owner}", f"--volume={secrets}:/certs:ro"),
        *("--env=ASSAY_SANDBOX__ISOLATION=isolated", "--memory=3g"),
        deployment.container("executor")["Image"],
        *("serve", "--host=0.0.0.0", *flags, "--client-ca=/certs/ca.crt"),
        "--token-file=/certs/executor-tokens",
    ).strip()
    try:
        assert await eventually(lambda: "listening" in logs_of(container), within_s=60)
        async with open_executor(deployment, port) as remote:
            said = await run_python(remote, PROBE + "print(os.getuid(), os.getpid() < 10)")
    finally:
        docker("rm", "--force", container)

    assert remote.isolation is Isolation.ISOLATED
    assert said.startswith("[]\n")
