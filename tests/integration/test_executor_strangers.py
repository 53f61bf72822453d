"""Whoever is not let in by an executor is told why, and it is written down with the reason."""

import json
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from assay.auth.certificates import make_server_certificate
from assay.auth.tokens import executor_tokens
from assay.contracts.errors import SandboxUnavailableError
from tests.support.executors import make_certificates, open_client, open_process

NO_TLS = "what came was not TLS"


def token_file(folder: Path, token: str) -> Path:
    path = folder / f"token-{len(token)}"
    path.write_text(token)
    path.chmod(0o600)
    return path


async def _refusal(port: int, **settings: object) -> str:
    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
        async with open_client(port, **settings):
            pass
    assert caught.value.dispatch == "never_started"
    assert caught.value.hint
    return str(caught.value)


async def test_each_way_of_not_getting_in_is_told_and_written_down(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    foreign = {**make_certificates(tmp_path / "foreign").client("mallory"), "ca": certificates.ca}
    alice = certificates.client("alice")
    token = executor_tokens(tmp_path / "tokens").add("alice")
    place = tmp_path / "executor"
    async with open_process(
        place, **certificates.server(), token_file=tmp_path / "tokens"
    ) as executor:
        told = {
            "none": await _refusal(executor.port, ca=certificates.ca),
            "foreign": await _refusal(executor.port, **foreign),
            "expired": await _refusal(executor.port, **certificates.client("late", days=0)),
            "plain": await _refusal(executor.port),
            "token": await _refusal(
                executor.port, **alice, token_file=token_file(tmp_path, token + "!")
            ),
        }
        async with open_client(
            executor.port, **alice, token_file=token_file(tmp_path, token)
        ) as remote:
            assert remote.isolation.value != "none"
        executor.process.terminate()
        with anyio.fail_after(60):
            await executor.process.wait()

    assert "sent no certificate" in told["none"]
    assert "rejects the client certificate" in told["foreign"]
    assert "our certificate has expired" in told["expired"]
    assert "it speaks TLS, and we speak plain text" in told["plain"]
    assert "does not know this token" in told["token"]
    log = (place / ".local/state/assay/executor/audit.jsonl").read_text().splitlines()
    refused = Counter(entry["why"] for entry in map(json.loads, log) if entry["event"] == "refused")
    assert refused.keys() >= {
        "no certificate was shown",
        "the certificate was not accepted: unable to get local issuer certificate",
        "the certificate was not accepted: certificate has expired",
        NO_TLS,
        "the executor does not know this token",
    }
    assert token not in "".join(log)


async def test_executors_are_asked_whether_they_serve(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    client = certificates.client("alice")
    async with open_process(tmp_path / "executor", **certificates.server()) as executor:
        environment = {
            "HOME": str(tmp_path),
            "ASSAY_SANDBOX__REMOTE__ADDRESSES": f"localhost:{executor.port}",
            **{f"ASSAY_SANDBOX__REMOTE__{name.upper()}": str(at) for name, at in client.items()},
        }
        asked = [sys.executable, "-m", "assay", "executor", "check", "--json"]
        well = await anyio.run_process(asked, env=environment, check=False)
        half = await anyio.run_process(
            asked[:-1],
            env={
                **environment,
                "ASSAY_SANDBOX__REMOTE__ADDRESSES": f"127.0.0.1:1, localhost:{executor.port}",
            },
            check=False,
        )
        del environment["ASSAY_SANDBOX__REMOTE__CERT"], environment["ASSAY_SANDBOX__REMOTE__KEY"]
        badly = await anyio.run_process(asked, env=environment, check=False)

    address = f"localhost:{executor.port}"
    serving = {"status": "serving", "isolation": "isolated"}
    assert json.loads(well.stdout) == {address: serving}, well.stderr
    assert half.returncode == badly.returncode == 4
    dead, hint, alive = half.stdout.decode().splitlines()
    assert "127.0.0.1:1: not available" in dead
    assert "connection refused" in dead
    assert "hint: " in hint
    assert alive == f"{address}: isolated"
    state = json.loads(badly.stdout)[address]
    assert state["status"] == "unavailable"
    assert "certificate" in state["error"]
    assert "sandbox.remote.cert" in state["hint"]


async def test_an_executor_with_an_expired_certificate_is_named_with_the_reason(
    tmp_path: Path,
) -> None:
    certificates = make_certificates(tmp_path / "certs")
    for name in ("server.crt", "server.key"):
        (certificates.folder / name).unlink()
    make_server_certificate(certificates.folder, ("localhost", "127.0.0.1"), days=0)
    client = certificates.client("alice")
    async with open_process(tmp_path / "executor", **certificates.server()) as executor:
        address = f"127.0.0.1:{executor.port}"
        environment = {
            "HOME": str(tmp_path),
            "ASSAY_SANDBOX__REMOTE__ADDRESSES": address,
            **{f"ASSAY_SANDBOX__REMOTE__{name.upper()}": str(at) for name, at in client.items()},
        }
        asked = [sys.executable, "-m", "assay", "executor", "check", "--json"]
        checked = await anyio.run_process(asked, env=environment, check=False)
        words = [sys.executable, "-m", "assay", "sandbox", "run", "--backend", "remote", "-"]
        ran = await anyio.run_process(words, env=environment, check=False, input=b"print(1)")

    state = json.loads(checked.stdout)[address]
    assert checked.returncode == ran.returncode == 4
    assert state["status"] == "unavailable"
    assert "its certificate has expired" in state["error"]
    assert "assay certs make" in state["hint"]
    # Assay's own words, and none of the libraries below.
    assert len(checked.stderr.splitlines()) == 1
    error, hint = ran.stderr.decode().splitlines()
    assert error == f"error: the executor {address}: its certificate has expired"
    assert "assay certs make" in hint
