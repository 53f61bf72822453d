import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from assay.contracts.execution import Command, Limits, Program, PythonCode
from assay.sandbox.native.host.program import JailPaths, encode_request

JAILED = JailPaths(workspace="/app", temporary="/tmp", groups_enforce=True)
WATCHED = JailPaths(workspace="/app", temporary="/tmp", groups_enforce=False)
SHARED = JailPaths(
    workspace="/boxes/1/workspace",
    temporary="/boxes/1/tmp",
    writable=("/boxes/1/workspace", "/boxes/1/tmp"),
    groups_enforce=False,
    processes_elsewhere=40,
)
MEGABYTE = 1 << 20


def header_of(
    program: Program, *, limits: Limits | None = None, setting: JailPaths = JAILED
) -> dict[str, Any]:
    line, _, _ = encode_request(program, limits or Limits(), setting).partition(b"\n")
    return json.loads(line)


def test_a_source_follows_its_header_byte_for_byte() -> None:
    source = b"print(1)\n\xff\x00\r\n\n"

    header, _, rest = encode_request(PythonCode(source=source), Limits(), JAILED).partition(b"\n")

    assert json.loads(header)["kind"] == "python"
    assert rest == source


def test_python_is_asked_for_with_its_name_and_arguments() -> None:
    header = header_of(PythonCode(source=b"", filename="x.py", args=("a\nb", "c")))

    assert (header["filename"], header["args"]) == ("x.py", ["a\nb", "c"])


def test_a_command_is_one_line_and_nothing_more() -> None:
    request = encode_request(Command(argv=("sh", "-c", "echo\n")), Limits(), JAILED)

    assert request.endswith(b"\n")
    assert request.count(b"\n") == 1
    assert json.loads(request)["argv"] == ["sh", "-c", "echo\n"]


def test_an_argument_that_is_not_utf_8_arrives_as_it_was() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")

    header = header_of(Command(argv=("cat", name)))

    assert header["argv"][1].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_the_working_directory_is_told_relative_to_the_workspace() -> None:
    header = header_of(Command(argv=("ls",), cwd=PurePosixPath("a/b")))

    assert (header["workspace"], header["cwd"]) == ("/app", "a/b")


def test_a_home_is_given_unless_the_program_brings_its_own() -> None:
    plain = header_of(Command(argv=("ls",), env={"A": "b"}), setting=SHARED)
    chosen = header_of(Command(argv=("ls",), env={"HOME": "/app"}), setting=SHARED)

    assert plain["env"] == {"HOME": "/boxes/1/tmp", "TMPDIR": "/boxes/1/tmp", "A": "b"}
    assert chosen["env"]["HOME"] == "/app"


def test_only_a_box_on_the_host_names_what_may_be_written() -> None:
    assert header_of(Command(argv=("ls",)))["writable"] == []
    assert header_of(Command(argv=("ls",)), setting=SHARED)["writable"] == list(SHARED.writable)


@pytest.mark.parametrize(("cpu_s", "rlimit"), [(0.2, 2), (1.0, 2), (1.5, 3), (60.0, 61)])
def test_processor_time_of_one_process_ends_after_that_of_all(cpu_s: float, rlimit: int) -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(cpu_s=cpu_s))

    assert header["rlimits"]["RLIMIT_CPU"] == rlimit


def test_a_full_disk_is_met_before_the_limit_of_one_file() -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(disk_mb=10))

    assert header["rlimits"]["RLIMIT_FSIZE"] > 10 * MEGABYTE


def test_open_files_are_limited_as_asked() -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(open_files=17))

    assert header["rlimits"]["RLIMIT_NOFILE"] == 17


def test_without_control_groups_processes_are_limited_exactly() -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(processes=5), setting=WATCHED)

    assert header["rlimits"]["RLIMIT_NPROC"] == 5 + 1


def test_a_control_group_refuses_processes_before_the_backstop_does() -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(processes=5))

    assert header["rlimits"]["RLIMIT_NPROC"] > 5 + 1


def test_processes_of_the_same_user_elsewhere_do_not_use_up_the_limit() -> None:
    header = header_of(Command(argv=("ls",)), limits=Limits(processes=5), setting=SHARED)

    assert header["rlimits"]["RLIMIT_NPROC"] >= 40 + 5 + 1


def test_memory_is_limited_per_process_only_where_no_group_does_it() -> None:
    limits = Limits(memory_mb=100)

    assert "RLIMIT_DATA" not in header_of(Command(argv=("ls",)), limits=limits)["rlimits"]
    watched = header_of(Command(argv=("ls",)), limits=limits, setting=WATCHED)
    assert watched["rlimits"]["RLIMIT_DATA"] > 100 * MEGABYTE


@pytest.mark.parametrize("setting", [JAILED, WATCHED, SHARED], ids=["jailed", "watched", "shared"])
def test_every_limit_is_a_whole_number_that_setrlimit_takes(setting: JailPaths) -> None:
    rlimits = header_of(Command(argv=("ls",)), setting=setting)["rlimits"]

    assert all(isinstance(value, int) and 0 < value < 1 << 63 for value in rlimits.values())
