"""`assay sandbox`: run programs in a sandbox, test the sandbox itself, clean up after crashes."""

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli import sandbox_admin, workspace_options
from assay.cli.options import FOLDER, json_option, to_json
from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import (
    Command,
    ExecutionResult,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
    base64_of_binary,
)
from assay.contracts.jsonable import jsonable
from assay.sandbox.output import Capture

if TYPE_CHECKING:
    from assay.settings.load import SandboxSettings

_TIMED_OUT: Final = 124
_BY_SIGNAL: Final = 128
_ARGV: Final = "assay.argv"
_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_COUNT: Final = click.IntRange(min=1)


@click.group(name="sandbox")
def command() -> None:
    """Run programs in a sandbox, test and clean up sandboxes."""


command.add_command(sandbox_admin.selftest)
command.add_command(sandbox_admin.list_engines)
command.add_command(sandbox_admin.clean)
command.add_command(sandbox_admin.packages_command)


class _WithProgram(click.Command):
    """A command that keeps all words after `--` as a program and its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_ARGV] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[OPTIONS]", "FILE|- [ARGS]...  or  [OPTIONS] -- PROGRAM [ARGS]..."]


@command.command(cls=_WithProgram, context_settings={"allow_interspersed_args": False})
@click.argument("file", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--backend", help="Sandbox backend: auto, native, docker, docker+runsc, e2b or remote."
)
@click.option(
    "--isolation", help="Minimum isolation level: restricted, isolated, kernel or machine."
)
@click.option(
    "--timeout",
    "wall_s",
    type=_SECONDS,
    help="Seconds before the program is killed.  [default: 60]",
)
@click.option("--cpu-s", type=_SECONDS, help="CPU seconds of all its processes.  [default: 60]")
@click.option("--memory-mb", type=_COUNT, help="Memory of all its processes.  [default: 512]")
@click.option("--processes", type=_COUNT, help="Processes and threads.  [default: 64]")
@click.option("--disk-mb", type=_COUNT, help="Workspace and /tmp together.  [default: 256]")
@click.option("--network", help="`none`: block all connections, also those of the settings.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Host that the program may reach (repeatable).",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Package to install for the program (repeatable).",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable (repeatable). `--env auto` installs the packages of --workspace, "
    "`--env PATH` mounts a virtual environment.",
)
@click.option("--copy", "copies", multiple=True, metavar="FILE", help="Copy it in (repeatable).")
@click.option(
    "--workspace",
    type=FOLDER,
    help="Run the program in a copy of this folder, and list the changes.",
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Files not to copy (repeatable).")
@click.option("--include", multiple=True, metavar="PATH", help="Copy a withheld path (repeatable).")
@click.option("--diff", "show_diff", is_flag=True, help="Show the changes as a diff.")
@click.option("--apply", "apply_changes", is_flag=True, help="Write the changes into the folder.")
@click.option(
    "--artifacts",
    type=FOLDER,
    help="Save new and changed files into this folder.",
)
@click.option(
    "--stdin", "stdin", metavar="FILE", help="Standard input: a file, or - for this stdin."
)
@json_option("Print the whole result as one JSON object.")
@click.pass_context
def run(ctx: click.Context, file: str | None, args: tuple[str, ...], **options: Any) -> int:
    """Run a Python FILE, or any program after `--`, in a fresh sandbox.

    Assay passes its output and exit code through; 124 means a timeout, 128 + N that signal N
    killed it.
    """
    import anyio

    _check_words(options)
    program = _program(file, args, ctx.meta.get(_ARGV), options)
    limits = _limits(options)
    settings = _settings(options, program)
    copies = {PurePosixPath(Path(name).name): _read(name) for name in options["copies"]}
    workspace_options.check_options(options)
    heard = _Heard(limits.output_bytes) if options["as_json"] else None
    try:
        result, handed_back = anyio.run(_run, settings, limits, program, copies, options, heard)
    except SandboxUnavailableError as error:
        if heard:
            fields = {"error": str(error), "hint": error.hint, "dispatch": error.dispatch}
            click.echo(to_json({**fields, **heard.fields()}))
        raise
    if heard:
        changes = handed_back.fields() if handed_back else {}
        click.echo(to_json({**result_fields(result), **changes}))
    else:
        _explain(result, limits)
        if handed_back:
            handed_back.show()
    return exit_code(result)


async def _run(
    settings: "SandboxSettings",
    limits: Limits,
    program: Program,
    copies: Mapping[PurePosixPath, bytes],
    options: Mapping[str, Any],
    heard: "_Heard | None",
) -> tuple[ExecutionResult, workspace_options.WorkspaceReport | None]:
    """Run the program; output goes to the terminal, or to `heard` if there is one."""
    from assay.runs.environment import prepare_environment
    from assay.wiring import open_backend

    quiet = heard is not None

    def tell(notice: str) -> None:
        if not quiet:
            click.echo(notice, err=True)

    choice = workspace_options.chosen_environment(options["env"])
    environment = await prepare_environment(settings, choice, options["workspace"], tell)
    opening = open_backend(environment.sandbox, project=environment.project, on_notice=tell)
    async with opening as backend:
        if settings.isolation is None and backend.isolation.value == "restricted":
            click.echo(
                "warning: this machine allows `restricted` isolation only; see `assay doctor`",
                err=True,
            )
        async with backend.open_sandbox(limits) as sandbox:
            sent = None
            if options["workspace"]:
                sent = await workspace_options.send(sandbox, options, quiet=quiet)
            for path, content in copies.items():
                await sandbox.write_file(path, content)
            result = await sandbox.run(program, on_output=heard.add if heard else _pass_through)
            if sent is None:
                return result, None
            return result, await workspace_options.hand_back(sent, options, result, quiet=quiet)


class _Heard:
    """The output so far, for an error without a result."""

    def __init__(self, most_bytes: int) -> None:
        self._kept = {"stdout": Capture(most_bytes), "stderr": Capture(most_bytes)}

    def add(self, chunk: OutputChunk) -> None:
        self._kept[chunk.stream].add(chunk.data)

    def fields(self) -> dict[str, Any]:
        """Return the output, named as in a result."""
        return _output_fields(self._kept["stdout"].kept, self._kept["stderr"].kept)


def _pass_through(chunk: OutputChunk) -> None:
    stream = sys.stdout if chunk.stream == "stdout" else sys.stderr
    stream.buffer.write(chunk.data)
    stream.buffer.flush()


def _check_words(options: Mapping[str, Any]) -> None:
    from assay.settings.types import backend_names

    choices = {
        "backend": ("auto", *backend_names()),
        "isolation": tuple(grade.value for grade in Isolation),
        "network": ("none",),
    }
    if options["network"] == "none" and options["hosts"]:
        raise UsageError(
            "--network none and --allow-host contradict each other", hint="leave one of them out"
        )
    for name, known in choices.items():
        if options[name] is not None and options[name] not in known:
            raise UsageError(
                f"unknown {name} {options[name]!r}", hint=f"choose from: {', '.join(known)}"
            )


def _program(
    file: str | None, args: tuple[str, ...], argv: list[str] | None, options: Mapping[str, Any]
) -> Program:
    env: dict[str, str] = {}
    for text in options["env"]:
        if workspace_options.names_environment(text):
            continue
        variable, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"invalid variable {text!r}", hint="write --env NAME=VALUE")
        env[variable] = value
    if argv is not None and file is not None:
        raise UsageError("give a file or a program after `--`, not both")
    if argv is not None:
        return Command(argv=tuple(argv), env=env, stdin=_stdin(options["stdin"]))
    if file is None:
        raise UsageError(
            "nothing to run", hint="give a Python file, - for stdin, or a program after `--`"
        )
    if file == "-" and options["stdin"] == "-":
        raise UsageError("stdin cannot be both the program and its input")
    source = sys.stdin.buffer.read() if file == "-" else _read(file)
    _check_source(file, source)
    name = "stdin.py" if file == "-" else Path(file).name
    return PythonCode(
        source=source, filename=name, args=args, env=env, stdin=_stdin(options["stdin"])
    )


def _stdin(name: str | None) -> bytes:
    if name is None:
        return b""
    return sys.stdin.buffer.read() if name == "-" else _read(name)


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {name!r}", hint="check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{name!r} is a directory", hint="name a file in it") from None
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}") from error


def _check_source(name: str, source: bytes) -> None:
    if not source.strip():
        raise UsageError(f"the program {name!r} is empty", hint="write some Python into it")
    import tokenize
    from io import BytesIO

    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
        source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        raise UsageError(
            f"the program {name!r} is not valid UTF-8 ({reason})",
            hint="save it as UTF-8, or declare its encoding in the first line",
        ) from error


def _limits(options: Mapping[str, Any]) -> Limits:
    names = {
        "wall_s": "--timeout",
        "cpu_s": "--cpu-s",
        "memory_mb": "--memory-mb",
        "processes": "--processes",
        "disk_mb": "--disk-mb",
    }
    given = {name: options[name] for name in names if options[name] is not None}
    try:
        return Limits(**given)
    except UsageError as error:
        # The message names the option, not the field.
        name = str(error).partition(" ")[0]
        raise UsageError(
            str(error).replace(name, names[name]), hint=error.hint.replace(name, names[name])
        ) from error


def _settings(options: Mapping[str, Any], program: Program) -> "SandboxSettings":
    from assay.sandbox.native.host.program import needed_stages
    from assay.settings.load import load_settings

    words = {"backend": options["backend"], "isolation": options["isolation"]}
    settings = load_settings({"sandbox": words}).sandbox
    # Only one program runs: preload just its imports, and keep no warm_containers.
    preload = needed_stages(program, settings.preload)
    hosts = () if options["network"] == "none" else (*settings.hosts, *options["hosts"])
    packages = (*settings.packages, *options["packages"])
    docker = settings.docker.model_copy(update={"warm_containers": 0})
    update = {
        "preload": preload,
        "pool_size": 0,
        "hosts": hosts,
        "packages": packages,
        "docker": docker,
    }
    return settings.model_copy(update=update)


def exit_code(result: ExecutionResult) -> int:
    """Return the exit code that a shell would return for the program."""
    if result.reason is Reason.TIMED_OUT:
        return _TIMED_OUT
    if result.exit_code is not None:
        return result.exit_code
    return _BY_SIGNAL + (result.signal or 0)


def _output_fields(stdout: bytes, stderr: bytes) -> dict[str, str | None]:
    """Return output as text, and also in base64 if it is not UTF-8."""
    kept = {"stdout": stdout, "stderr": stderr}
    encoded = {name: base64_of_binary(data) for name, data in kept.items()}
    return {
        **{name: data.decode(errors="replace") for name, data in kept.items()},
        **{f"{name}_bytes": text for name, text in encoded.items()},
        **{f"{name}_base64": text for name, text in encoded.items() if text is not None},
    }


def result_fields(result: ExecutionResult) -> dict[str, Any]:
    """Return the fields of `ExecutionResult`; bytes that are not UTF-8 also in base64."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason.value,
        "timed_out": result.timed_out,
        **_output_fields(result.stdout_bytes, result.stderr_bytes),
        "truncated": result.truncated,
        "stdout_dropped_bytes": result.stdout_dropped_bytes,
        "stderr_dropped_bytes": result.stderr_dropped_bytes,
        "duration_s": result.duration_s,
        "cpu_s": result.cpu_s,
        "peak_memory_bytes": result.peak_memory_bytes,
        "limits_hit": list(result.limits_hit),
        "timings": jsonable(result.timings),
        "backend": result.backend,
        "isolation": result.isolation.value,
        "denials": jsonable(result.denials),
    }


def _explain(result: ExecutionResult, limits: Limits) -> None:
    """Print on stderr what the exit code does not show."""
    for denial in result.denials:
        click.echo(f"assay: denied: {denial}", err=True)
    if result.reason in {Reason.COMPLETED, Reason.SIGNALLED} and not result.truncated:
        return
    if result.reason is Reason.COULD_NOT_START:
        click.echo(result.stderr, err=True, nl=False)
        return
    told = {
        Reason.TIMED_OUT: f"was killed after {limits.wall_s:g} s (--timeout)",
        Reason.CPU_TIME: f"used more than {limits.cpu_s:g} s of processor time (--cpu-s)",
        Reason.OUT_OF_MEMORY: f"used more than {limits.memory_mb} MB of memory (--memory-mb)",
        Reason.TOO_MANY_PROCESSES: f"needed more than {limits.processes} processes (--processes)",
        Reason.DISK_FULL: f"wrote more than {limits.disk_mb} MB (--disk-mb)",
        Reason.OUTPUT_LIMIT: f"wrote far more than {limits.output_bytes} bytes of output",
    }
    if message := told.get(result.reason):
        click.echo(f"assay: the program {message}", err=True)
