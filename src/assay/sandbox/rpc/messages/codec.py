"""Codec of requests: limits, equipment and programs, both ways.

Encoding raises `UsageError` for values that no message can hold. Decoding raises `MessageError` for
messages that no Assay client sends, and `UsageError` for values that the contracts reject.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Final, assert_never

from assay.contracts.errors import UsageError
from assay.contracts.execution import (
    Command,
    Limits,
    Program,
    PythonCode,
    SandboxSpec,
)
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.primitives import (
    MessageError,
    from_name,
    from_path,
    to_name,
    to_path,
)

MAX_MESSAGE_BYTES: Final = 64 << 20
"""The largest message that either side accepts. Files and output come in smaller pieces."""
CHUNK_BYTES: Final = 256 << 10
"""The size of the pieces in which files and output are sent."""
_MOST_ARGUMENTS: Final = 100_000
"""More than any kernel passes to a program."""


def to_limits(limits: Limits) -> pb.Limits:
    """Encode all limits."""
    return pb.Limits(**{field.name: getattr(limits, field.name) for field in fields(limits)})


def from_limits(message: pb.Limits) -> Limits:
    """Decode limits; missing ones get their default.

    Raises:
        UsageError: If a number is not finite and positive.
    """
    given = {field.name: getattr(message, field.name) for field in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if message.HasField(name)})


def to_equipment(equipment: SandboxSpec) -> pb.Equipment:
    """Encode equipment."""
    return pb.Equipment(packages=equipment.packages, hosts=equipment.hosts)


def from_equipment(message: pb.Equipment) -> SandboxSpec:
    """Decode equipment.

    Raises:
        UsageError: If a host or a package has a wrong form.
    """
    return SandboxSpec(packages=tuple(message.packages), hosts=tuple(message.hosts))


def to_program(program: Program) -> pb.Program:
    """Encode a program.

    Raises:
        UsageError: If it is too large for a message.
    """
    message = pb.Program(
        stdin=program.stdin,
        env=[
            pb.Variable(name=to_name(name), value=to_name(value))
            for name, value in program.env.items()
        ],
        cwd=to_path(program.cwd),
        timeout_s=program.timeout_s,
    )
    match program:
        case Command():
            message.command.argv.extend(map(to_name, program.argv))
        case PythonCode():
            message.python.source = program.source
            message.python.filename = to_name(program.filename)
            message.python.args.extend(map(to_name, program.args))
        case _:
            assert_never(program)
    if message.ByteSize() > MAX_MESSAGE_BYTES - CHUNK_BYTES:
        raise UsageError(
            f"the program and its input are larger than {MAX_MESSAGE_BYTES >> 20} MiB",
            hint="write the input into a file of the sandbox",
        )
    return message


def from_program(message: pb.Program) -> Program:
    """Decode a program.

    Raises:
        MessageError: If it is neither a command nor Python.
        UsageError: If the contracts reject it.
    """
    env = {from_name(variable.name): from_name(variable.value) for variable in message.env}
    cwd = from_path(message.cwd)
    timeout_s = message.timeout_s if message.HasField("timeout_s") else None
    match message.WhichOneof("kind"):
        case "command":
            return Command(
                argv=_arguments(message.command.argv),
                stdin=message.stdin,
                env=env,
                cwd=cwd,
                timeout_s=timeout_s,
            )
        case "python":
            return PythonCode(
                source=message.python.source,
                filename=from_name(message.python.filename) or "main.py",
                args=_arguments(message.python.args),
                stdin=message.stdin,
                env=env,
                cwd=cwd,
                timeout_s=timeout_s,
            )
        case _:
            raise MessageError("neither a command nor Python")


def _arguments(names: Iterable[bytes]) -> tuple[str, ...]:
    decoded = tuple(map(from_name, names))
    if len(decoded) > _MOST_ARGUMENTS:
        raise MessageError(f"{len(decoded)} arguments")
    return decoded


def to_source(source: str) -> bytes:
    """Encode the source of a cell, including lone surrogates, which the interpreter reports."""
    return source.encode("utf-8", errors="surrogatepass")


def from_source(source: bytes) -> str:
    """Decode the source of a cell.

    Raises:
        MessageError: If it is not UTF-8.
    """
    try:
        return source.decode("utf-8", errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise MessageError("the source of a cell is not UTF-8") from error
