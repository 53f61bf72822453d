"""Requirements for the equipment of a sandbox: packages and hosts.

No check connects to a host: a successful connection needs a host that answers, and the suite must
run anywhere.
"""

from assay.contracts.errors import PackageError
from assay.contracts.execution import Command, Isolation, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import (
    ORDINARY,
    describe,
    open_equipped,
    python,
    run_alone,
    run_expecting,
    run_well,
)

_PACKAGE = "six"
"""Small, without dependencies, and in every index."""
_UNKNOWN = "assay-there-is-no-such-package"
_HOST = "example.org"


async def _refusal(backend: SandboxBackend, package: str) -> PackageError:
    try:
        async with open_equipped(backend, ORDINARY, SandboxSpec(packages=(package,))):
            pass
    except PackageError as error:
        return error
    raise AssertionError(f"a sandbox was opened with {package!r}")


@requirement
async def a_package_that_does_not_exist_is_named_in_the_error(backend: SandboxBackend) -> None:
    refusal = await _refusal(backend, _UNKNOWN)

    assert _UNKNOWN in str(refusal), f"it does not say which: {refusal}"


@requirement
async def a_package_from_a_url_or_path_is_refused(backend: SandboxBackend) -> None:
    for place in ("./package", "git+https://example.org/package", "six @ file:///tmp/six.whl"):
        await _refusal(backend, place)


@requirement
async def a_package_is_found_by_code_and_by_programs(backend: SandboxBackend) -> None:
    async with open_equipped(backend, ORDINARY, SandboxSpec(packages=(_PACKAGE,))) as sandbox:
        by_code = await run_well(sandbox, f"import {_PACKAGE}; print({_PACKAGE}.__name__)")
        by_program = await _ask_python(sandbox, f"import {_PACKAGE}; print({_PACKAGE}.__file__)")
        again = await run_well(sandbox, f"import {_PACKAGE}; print({_PACKAGE}.__file__)")

    assert by_code.strip() == _PACKAGE
    assert by_program == again, "two ways to run Python find it at two places"


async def _ask_python(sandbox: Sandbox, source: str) -> str:
    result = await run_expecting(sandbox, Command(argv=("python3", "-c", source)), succeeded=True)
    return result.stdout


@requirement
async def a_program_cannot_change_a_package(backend: SandboxBackend) -> None:
    spoil = f"""
        import os, {_PACKAGE}
        for act in (
            lambda: open({_PACKAGE}.__file__, "a"),
            lambda: os.remove({_PACKAGE}.__file__),
            lambda: open(os.path.join(os.path.dirname({_PACKAGE}.__file__), "new.py"), "w"),
            lambda: os.chmod({_PACKAGE}.__file__, 0o666),
        ):
            try:
                act()
            except OSError:
                continue
            print("done")
    """
    async with open_equipped(backend, ORDINARY, SandboxSpec(packages=(_PACKAGE,))) as sandbox:
        printed = await run_well(sandbox, spoil)

    assert printed == "", "a package was changed"


@requirement(needs=Isolation.ISOLATED)
async def a_host_outside_the_allowlist_is_blocked_and_reported(backend: SandboxBackend) -> None:
    ask = """
        import socket
        try:
            print(socket.getaddrinfo("other.example.net", 443))
        except OSError:
            pass
    """
    result = await run_alone(backend, python(ask), equipment=SandboxSpec(hosts=(_HOST,)))

    assert result.stdout == "", describe(result)
    assert [denial.host for denial in result.denials] == ["other.example.net"]


@requirement(needs=Isolation.ISOLATED)
async def an_address_outside_the_allowlist_is_blocked_and_reported(backend: SandboxBackend) -> None:
    knock = """
        import socket
        for place in (("192.0.2.1", 443), ("2001:db8::1", 80), ("169.254.169.254", 80)):
            try:
                with socket.create_connection(place, timeout=5) as mine:
                    mine.sendall(b"hello")
                    print(mine.recv(64))
            except OSError:
                pass
    """
    result = await run_alone(backend, python(knock), equipment=SandboxSpec(hosts=(_HOST,)))

    told = {(denial.host, denial.port) for denial in result.denials}
    assert result.stdout == "", describe(result)
    assert {("192.0.2.1", 443), ("169.254.169.254", 80)} <= told, f"told was {told}"


@requirement(needs=Isolation.ISOLATED)
async def a_blocked_connection_is_reported_once(backend: SandboxBackend) -> None:
    ask = """
        import socket
        for _ in range(5):
            try:
                socket.getaddrinfo("other.example.net", 443)
            except OSError:
                pass
    """
    result = await run_alone(backend, python(ask), equipment=SandboxSpec(hosts=(_HOST,)))

    assert len(result.denials) == 1, f"told were {result.denials}"


@requirement(needs=Isolation.ISOLATED)
async def programs_of_a_sandbox_with_hosts_can_connect_to_each_other(
    backend: SandboxBackend,
) -> None:
    talk = """
        import socket
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5) as mine:
                theirs, _ = server.accept()
                theirs.sendall(b"hello")
                print(mine.recv(5).decode())
                theirs.close()
    """
    result = await run_alone(backend, python(talk), equipment=SandboxSpec(hosts=(_HOST,)))

    assert result.stdout == "hello\n", describe(result)
    assert result.denials == (), f"told were {result.denials}"
