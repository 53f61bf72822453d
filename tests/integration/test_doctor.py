"""`assay doctor` on this machine, as whoever runs the tests and as somebody ordinary."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from assay.contracts.errors import ExitCode
from assay.sandbox.native.doctor import probe_acts
from assay.sandbox.native.doctor.probes import attempt, import_module
from assay.sandbox.native.guest import launcher
from assay.sandbox.native.kernel import cgroups
from tests.support.children import a_child
from tests.support.eventually import eventually
from tests.support.ordinary_user import OrdinaryUser, an_ordinary_user
from tests.support.requirements import require

DOCTOR = (sys.executable, "-m", "assay", "doctor")
ONLY_ROOT = {"unprivileged identity", "namespaces of root", "interpreter for landlock"}
LOWER_LIMIT = 'echo 0 > "/proc/sys/user/$0" && exec "$@"'


@pytest.fixture(scope="module")
def user() -> Generator[OrdinaryUser]:
    with an_ordinary_user() as user:
        yield user


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)


def report_of(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The report, after what must hold for any."""
    assert process.stderr == ""
    report = json.loads(process.stdout)
    assert process.returncode == (
        ExitCode.ACCEPTED if report["usable"] else ExitCode.INFRASTRUCTURE
    )
    report["by_name"] = {finding["name"]: finding for finding in report["findings"]}
    assert len(report["by_name"]) == len(report["findings"])
    return report


def without_namespaces(limit: str, *argv: str, root: bool) -> tuple[str, ...]:
    """A command in a user namespace that may make no further namespaces of a kind."""
    ids = ("--map-root-user",) if root else ("--map-current-user", "--keep-caps")
    without_docker = ("env", "ASSAY_SANDBOX__BACKEND=native")
    return (*without_docker, "unshare", "--user", *ids, "sh", "-c", LOWER_LIMIT, limit, *argv)


@pytest.fixture(scope="module")
def own_report() -> dict[str, Any]:
    return report_of(run(*DOCTOR, "--json"))


@pytest.fixture(scope="module")
def user_report(user: OrdinaryUser) -> dict[str, Any]:
    return report_of(user.run([str(user.python), "-m", "assay", "doctor", "--json"]))


def test_the_native_backend_is_usable_here(own_report: dict[str, Any]) -> None:
    assert own_report["usable"]
    assert own_report["backend"] == "native"
    assert own_report["isolation"] == own_report["native"]
    assert own_report["run_ms"] > 0


def test_what_was_not_reached_has_a_cause(own_report: dict[str, Any]) -> None:
    for finding in own_report["findings"]:
        assert finding["detail"]
        assert bool(finding["cause"]) == (finding["status"] not in {"ok", "info"})


def test_root_is_asked_for_what_only_root_needs(own_report: dict[str, Any]) -> None:
    require("root", available=os.geteuid() == 0, why="the tests do not run as root")

    assert own_report["by_name"]["unprivileged identity"]["status"] == "ok"
    assert own_report["by_name"]["namespaces of root"]["status"] == "ok"


def test_control_groups_are_used_where_they_can_be_made(own_report: dict[str, Any]) -> None:
    finding = own_report["by_name"]["control groups"]
    require("cgroup", available=finding["status"] == "ok", why=finding["cause"])

    assert own_report["limits_kept_by"].startswith("cgroup v")
    assert own_report["by_name"]["group limits"]["status"] == "ok"


def test_an_ordinary_user_gets_a_sandbox_too(user_report: dict[str, Any]) -> None:
    assert user_report["usable"]
    assert user_report["isolation"] == user_report["native"]
    assert not ONLY_ROOT.intersection(user_report["by_name"])


def test_without_control_groups_the_limits_are_watched(user_report: dict[str, Any]) -> None:
    made = user_report["by_name"]["control groups"]["status"] == "ok"

    assert (user_report["limits_kept_by"] == "rlimits and a watch") == (not made)


@pytest.mark.parametrize("whose", ["own_report", "user_report"])
def test_each_limit_is_said_to_be_enforced_or_sampled(
    whose: str, request: pytest.FixtureRequest
) -> None:
    report: dict[str, Any] = request.getfixturevalue(whose)
    memory = report["by_name"]["memory limit"]["detail"]

    if report["limits_kept_by"].startswith("cgroup"):
        assert memory == f"enforced by {report['limits_kept_by']}, memory of the kernel included"
    else:
        assert memory.startswith("sampled every 25 ms")
    for kind in ("process", "disk", "processor time"):
        assert re.match("enforced|sampled", report["by_name"][f"{kind} limit"]["detail"])


def test_nothing_is_left_behind(own_report: dict[str, Any]) -> None:
    del own_report

    folders = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    owners = [name.split("-")[1] for name in folders if re.fullmatch(r"assay-\d+-doctor", name)]
    assert [owner for owner in owners if not Path(f"/proc/{owner}").exists()] == []


def test_a_root_that_lacks_a_capability_is_told_how_it_goes_without() -> None:
    able = os.geteuid() == 0 and shutil.which("setpriv") is not None
    require("root", available=able, why="only root has capabilities to give up")
    weak = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")

    report = report_of(run(*weak, *DOCTOR, "--json"))

    assert report["isolation"] == "isolated"
    assert "lacks CAP_SYS_ADMIN" in report["by_name"]["namespaces of root"]["detail"]


def test_a_root_that_may_make_no_namespaces_is_told_why() -> None:
    argv = without_namespaces("max_user_namespaces", *DOCTOR, "--json", root=True)

    report = report_of(run(*argv))

    assert not report["usable"]
    assert report["native"] is None
    refused = report["by_name"]["user namespace"]
    assert refused["status"] == "failed"
    assert refused["cause"] == "user.max_user_namespaces is 0"
    assert refused["fix"] == "sudo sysctl -w user.max_user_namespaces=15000"
    assert "1 uid(s)" in report["by_name"]["unprivileged identity"]["cause"]


@pytest.mark.parametrize(
    ("limit", "refused"),
    [("max_user_namespaces", "user namespace"), ("max_net_namespaces", "net namespace")],
)
def test_a_user_who_may_make_no_namespaces_is_told_why(
    user: OrdinaryUser, limit: str, refused: str
) -> None:
    doctor = (str(user.python), "-m", "assay", "doctor", "--json")

    report = report_of(user.run(without_namespaces(limit, *doctor, root=False)))

    finding = report["by_name"][refused]
    assert finding["cause"] == f"user.{limit} is 0"
    assert finding["fix"] == f"sudo sysctl -w user.{limit}=15000"
    landlock = report["by_name"]["landlock"]["status"] == "ok"
    assert report["native"] == ("restricted" if landlock else None)
    assert report["isolation"] == report["native"]


def test_settings_that_ask_for_more_than_there_is_make_the_machine_unusable(
    user: OrdinaryUser,
) -> None:
    doctor = (str(user.python), "-m", "assay", "doctor", "--json")
    argv = without_namespaces("max_user_namespaces", *doctor, root=False)

    report = report_of(user.run(argv, env={"ASSAY_SANDBOX__ISOLATION": "isolated"}))

    assert not report["usable"]
    assert report["findings"][-1]["status"] == "failed"


def test_a_pipe_gets_lines_without_colours() -> None:
    process = run(*DOCTOR)

    assert process.returncode == ExitCode.ACCEPTED
    assert process.stderr == ""
    assert "\x1b" not in process.stdout
    *_, verdict, limits = process.stdout.splitlines()
    assert verdict.startswith("Programs will run in the native sandbox")
    assert limits.startswith("Limits are kept by")


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_sees_progress_and_colours_unless_unwanted(
    tmp_path: Path, *, colours: bool
) -> None:
    # A terminal of its own kind, independent of the one that the tests run in.
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "xterm-256color"}
    unwanted = {} if colours else {"NO_COLOR": "1"}
    argv = DOCTOR[1:]

    with pexpect.spawn(
        DOCTOR[0], list(argv), env=env | unwanted, timeout=100, encoding="utf-8"
    ) as terminal:
        seen = terminal.read()

    assert "checking: user namespace" in seen
    assert ("\x1b[32mok" in seen) == colours
    assert "Programs will run in the native sandbox" in seen


async def test_a_probe_that_does_not_answer_in_time_is_ended() -> None:
    outcome = await attempt("user namespace", timeout_s=0)

    assert outcome.kind == "timed_out"


async def test_control_groups_of_a_probe_that_is_killed_are_removed_all_the_same() -> None:
    held = contextlib.ExitStack()

    def make_groups() -> None:
        held.enter_context(probe_acts._groups())  # noqa: SLF001 - held open, so that it can be killed in the middle

    require("cgroup", available=own_groups_can_be_made(), why="no control group can be made here")
    with a_child(make_groups) as probe:
        name = f"{probe}-doctor"
        made = cgroups.folders_of(name)

    assert made != ()
    assert await eventually(lambda: cgroups.folders_of(name) == ())


def own_groups_can_be_made() -> bool:
    made = cgroups.open_groups(f"{os.getpid()}-test")
    launcher.remove_all(made.folders)
    return made.enforcing


async def test_a_probe_that_dies_says_its_last_words() -> None:
    outcome = await attempt("something that is no act")

    assert outcome.kind == "crashed"
    assert "KeyError" in outcome.detail


async def test_a_module_that_is_not_there_names_the_extra() -> None:
    finding = await import_module("a_module_that_nobody_has")

    assert finding.status == "missing"
    assert finding.fix == "pip install 'assay-agent[data]'"


async def test_a_module_that_cannot_be_imported_is_told_from_a_missing_one() -> None:
    finding = await import_module("asyncio.windows_events")

    assert finding.status == "failed"
    assert "win32 only" in finding.detail
