"""Requirements for disk space: workspace and temporary files share one limit."""

from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.errors import WorkspaceFullError
from assay.contracts.execution import Isolation, Reason
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import ORDINARY, describe, python, refused, run_alone, run_well

_SMALL = replace(ORDINARY, disk_mb=12)
_FULL = PurePosixPath("full")

_FILL = """
    def fill(path, megabytes):
        written = 0
        try:
            with open(path, "wb", buffering=0) as file:
                while written < megabytes << 20:
                    written += file.write(bytes(1 << 16))
        except OSError as error:
            print(error.strerror)
        return written >> 20
"""


@promise
async def room_in_the_workspace_is_limited(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as sandbox:
        result = await sandbox.run(python("open('full', 'wb').write(bytes(100 << 20))"))

        assert result.reason is Reason.DISK_FULL, describe(result)
        assert "disk_mb" in result.limits_hit, describe(result)
        await sandbox.remove_path(_FULL)
        assert await run_well(sandbox, "print(open('new', 'w').write('room'))") == "4\n"


@promise(needs=Isolation.ISOLATED)
async def a_program_that_copes_with_a_full_disk_ends_well(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python(_FILL + "    print(fill('full', 100) <= 12)"), _SMALL)

    assert result.succeeded, describe(result)
    assert result.stdout == "No space left on device\nTrue\n", describe(result)
    assert "disk_mb" in result.limits_hit, describe(result)


@promise
async def as_much_room_as_promised_can_be_used(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python(_FILL + "    print(fill('big', 11))"), _SMALL)

    assert result.stdout == "11\n", describe(result)
    assert result.limits_hit == (), describe(result)


@promise
async def temporary_files_share_the_room(backend: SandboxBackend) -> None:
    source = """
    import os, tempfile
    first = fill("here", 8)
    second = fill(os.path.join(tempfile.gettempdir(), "there"), 8)
    print(first, first + second <= 12)
    """
    result = await run_alone(backend, python(_FILL + source), _SMALL)

    assert "disk_mb" in result.limits_hit, describe(result)
    # A backend without a separate file system can only detect the excess.
    if backend.isolation.satisfies(Isolation.ISOLATED):
        assert result.stdout == "No space left on device\n8 True\n", describe(result)


@promise
async def shared_memory_is_not_extra_room(backend: SandboxBackend) -> None:
    source = """
    import os
    first = fill("here", 8)
    second = fill("/dev/shm/there", 200) if os.path.isdir("/dev/shm") else 0
    print(second < 200)
    """
    limits = replace(_SMALL, memory_mb=64)
    result = await run_alone(backend, python(_FILL + source), limits)

    allowed = result.reason in {Reason.OUT_OF_MEMORY, Reason.DISK_FULL}
    assert allowed or result.stdout.endswith("True\n"), describe(result)


@promise
async def tiny_files_are_limited_too(backend: SandboxBackend) -> None:
    source = """
        made = 0
        try:
            while made < 150_000:
                open(f"tiny-{made}", "w").close()
                made += 1
            print("no end to it")
        except OSError as error:
            print(error.strerror)
    """
    result = await run_alone(backend, python(source), replace(ORDINARY, disk_mb=4))

    assert "no end to it" not in result.stdout, describe(result)
    noticed = result.reason is Reason.DISK_FULL
    assert noticed or result.stdout == "No space left on device\n", describe(result)
    assert "disk_mb" in result.limits_hit, describe(result)


@promise
async def a_file_that_does_not_fit_is_refused(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as sandbox:
        await _is_full(sandbox, bytes(100 << 20))

        await sandbox.write_file(PurePosixPath("small"), b"fits")
        assert await sandbox.read_file(PurePosixPath("small")) == b"fits"


@promise
async def a_refused_file_leaves_no_part_of_it(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as sandbox:
        await _is_full(sandbox, bytes(100 << 20))

        left = [str(entry.path) for entry in await sandbox.list_files()]
        assert left == [], f"a half-written file was left: {left}"


@promise
async def a_refused_file_leaves_the_old_one_alone(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as sandbox:
        await sandbox.write_file(_FULL, b"old content")

        await _is_full(sandbox, bytes(100 << 20))

        assert await sandbox.read_file(_FULL) == b"old content", "the old content is gone"


@promise(needs=Isolation.ISOLATED)
async def a_full_workspace_refuses_directories_and_can_be_emptied(
    backend: SandboxBackend,
) -> None:
    source = """
        import os
        os.mkdir("pile")
        try:
            for number in range(150_000):
                with open(f"pile/{number}", "wb") as file:
                    file.write(b"x" * 4096)
        except OSError:
            pass
        try:
            for number in range(150_000):
                os.mkdir(f"pile/d{number}")
        except OSError:
            print("full")
    """
    async with backend.open_sandbox(replace(ORDINARY, disk_mb=4)) as sandbox:
        assert await run_well(sandbox, source) == "full\n"

        await refused(WorkspaceFullError, sandbox.make_directory(PurePosixPath("one/more")))
        await sandbox.remove_path(PurePosixPath("pile"))
        await sandbox.make_directory(PurePosixPath("one/more"))


@promise
async def room_is_counted_for_each_sandbox_apart(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as full, backend.open_sandbox(_SMALL) as other:
        await _is_full(full, bytes(100 << 20))
        await full.write_file(_FULL, bytes(10 << 20))

        await other.write_file(_FULL, bytes(10 << 20))


async def _is_full(sandbox: Sandbox, content: bytes) -> None:
    await refused(WorkspaceFullError, sandbox.write_file(_FULL, content))
