import errno
from collections.abc import Mapping
from dataclasses import replace

import pytest

from assay.contracts.execution import Isolation
from assay.sandbox.native.doctor.explain import Finding, Status
from assay.sandbox.native.doctor.host_info import Machine
from assay.sandbox.native.doctor.probe_acts import ACTS
from assay.sandbox.native.doctor.probes import (
    ALL_PROBES,
    Outcome,
    describe_kernel,
    describe_runtimes,
    judge,
    reachable_isolation,
)

MACHINE = Machine(release="6.8.0")
OF_THE_MACHINE = ("kernel", "machine", "interpreter")


def findings(**changes: Status) -> Mapping[str, Finding]:
    """Everything works but for the changes; `_` in a name stands for a space."""
    names = (*OF_THE_MACHINE, *(probe.name for probe in ALL_PROBES))
    statuses: dict[str, Status] = dict.fromkeys(names, "ok")
    for name, status in changes.items():
        assert name.replace("_", " ") in statuses
        statuses[name.replace("_", " ")] = status
    return {name: Finding(name=name, status=status, detail="") for name, status in statuses.items()}


def test_every_probe_has_an_act_and_every_act_a_probe() -> None:
    assert sorted(probe.name for probe in ALL_PROBES) == sorted(ACTS)


def test_what_a_probe_needs_is_tried_before_it() -> None:
    tried: set[str] = set()
    for probe in ALL_PROBES:
        assert not probe.needs or probe.needs in tried
        tried.add(probe.name)


def test_where_everything_works_programs_are_isolated() -> None:
    assert reachable_isolation(findings()) is Isolation.ISOLATED


@pytest.mark.parametrize(
    "missing", ["user namespace", "uid map", "proc", "pivot root", "namespaces of root", "tmpfs"]
)
@pytest.mark.parametrize("status", ["failed", "missing", "timed_out"])
def test_without_namespaces_landlock_is_left(missing: str, status: Status) -> None:
    found = findings(**{missing.replace(" ", "_"): status})

    assert reachable_isolation(found) is Isolation.RESTRICTED


def test_without_namespaces_and_landlock_nothing_is_left() -> None:
    assert reachable_isolation(findings(user_namespace="failed", landlock="missing")) is None


@pytest.mark.parametrize(
    "missing", ["kernel", "machine", "seccomp", "pidfd", "openat2", "unprivileged identity"]
)
def test_what_both_grades_need_cannot_be_done_without(missing: str) -> None:
    assert reachable_isolation(findings(**{missing.replace(" ", "_"): "failed"})) is None


def test_control_groups_can_be_done_without() -> None:
    found = findings(control_groups="missing", group_limits="missing")

    assert reachable_isolation(found) is Isolation.ISOLATED


def test_where_nothing_was_tried_nothing_is_promised() -> None:
    found = {name: finding for name, finding in findings().items() if name in OF_THE_MACHINE}

    assert reachable_isolation(found) is None


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(kind="done", detail="made"), "ok"),
        (Outcome(kind="refused", detail="no", errno=errno.EPERM), "failed"),
        (Outcome(kind="refused", detail="no", errno=errno.ENOSYS), "missing"),
        (Outcome(kind="no_effect", detail="nothing happened"), "failed"),
        (Outcome(kind="absent", detail="none"), "missing"),
        (Outcome(kind="timed_out", detail="late"), "timed_out"),
        (Outcome(kind="crashed", detail="dead"), "failed"),
    ],
)
def test_what_a_process_said_becomes_a_finding(outcome: Outcome, status: Status) -> None:
    finding = judge("user namespace", outcome, MACHINE)

    assert finding.status == status
    assert finding.detail == outcome.detail
    assert bool(finding.cause) == bool(finding.fix) == (status != "ok")


def test_a_finding_names_the_cause_that_the_machine_shows() -> None:
    refused = Outcome(kind="refused", detail="clone: no", errno=errno.EPERM)

    finding = judge("user namespace", refused, replace(MACHINE, userns_clone=0))

    assert finding.cause == "kernel.unprivileged_userns_clone is 0"


@pytest.mark.parametrize(
    ("machine", "status"),
    [
        (Machine(release="6.8.0"), "ok"),
        (Machine(release="5.12.0"), "ok"),
        (Machine(release="5.10.0-30-amd64"), "missing"),
        (Machine(release="made at home"), "ok"),
        (Machine(system="Darwin", release="23.1.0"), "missing"),
    ],
)
def test_a_kernel_must_be_linux_and_new_enough(machine: Machine, status: Status) -> None:
    assert describe_kernel(machine).status == status


def test_runtimes_are_looked_for_where_we_are_told() -> None:
    assert describe_runtimes(()).detail == "docker, gVisor, bubblewrap not found"
