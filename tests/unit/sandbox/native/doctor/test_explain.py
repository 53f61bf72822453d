import errno
from dataclasses import replace

import pytest

from assay.sandbox.native.doctor.explain import explain
from assay.sandbox.native.doctor.host_info import GroupFacts, Machine

PLAIN = Machine(release="6.8.0-45-generic")
DOCKER = replace(PLAIN, container="docker", seccomp_filtered=True)
NAMESPACE_PROBES = ("user namespace", "uid map", "tmpfs", "proc", "pivot root", "net namespace")


@pytest.mark.parametrize("name", NAMESPACE_PROBES)
@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES])
@pytest.mark.parametrize(
    ("machine", "cause", "fix"),
    [
        (
            replace(PLAIN, userns_clone=0),
            "kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            replace(PLAIN, apparmor_restricts=True),
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (replace(PLAIN, chrooted=True), "chroot", "run Assay outside"),
        (
            DOCKER,
            "inside a container (docker); its seccomp profile",
            "--security-opt seccomp=unconfined --security-opt systempaths=unconfined",
        ),
        (
            replace(DOCKER, apparmor_profile="docker-default"),
            "the AppArmor profile 'docker-default'",
            "--security-opt apparmor=unconfined",
        ),
        (
            replace(PLAIN, container="podman", seccomp_filtered=True),
            "inside a container (podman)",
            "--security-opt unmask=ALL",
        ),
        (
            replace(PLAIN, container="kubernetes", seccomp_filtered=True),
            "inside a container (kubernetes)",
            "procMount: Unmasked",
        ),
        (replace(PLAIN, seccomp_filtered=True), "a seccomp filter of the program", "outside"),
        (replace(PLAIN, selinux_enforcing=True), "SELinux", "ausearch"),
    ],
    ids=lambda value: value.container or "host" if isinstance(value, Machine) else None,
)
def test_what_forbids_namespaces_is_named_with_a_way_out(
    name: str, code: int, machine: Machine, cause: str, fix: str
) -> None:
    found_cause, found_fix = explain(name, code, machine)

    assert cause in found_cause
    assert fix in found_fix


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EUSERS])
def test_a_limit_of_zero_is_named(code: int) -> None:
    machine = replace(PLAIN, namespace_limits={"user.max_user_namespaces": 0})

    found_cause, found_fix = explain("user namespace", code, machine)

    assert found_cause == "user.max_user_namespaces is 0"
    assert found_fix == "sudo sysctl -w user.max_user_namespaces=15000"


def test_the_limit_of_the_namespace_in_question_is_named() -> None:
    limits = {"user.max_user_namespaces": 9, "user.max_net_namespaces": 0}
    machine = replace(PLAIN, namespace_limits=limits)

    assert explain("net namespace", errno.ENOSPC, machine)[0] == "user.max_net_namespaces is 0"


def test_a_limit_that_is_reached_is_told_from_one_of_zero() -> None:
    machine = replace(PLAIN, namespace_limits={"user.max_user_namespaces": 9})

    assert "as many namespaces as allowed" in explain("user namespace", errno.ENOSPC, machine)[0]


def test_a_switch_is_not_blamed_for_a_limit() -> None:
    machine = replace(PLAIN, userns_clone=0, namespace_limits={"user.max_user_namespaces": 0})

    assert "max_user_namespaces" in explain("user namespace", errno.ENOSPC, machine)[0]


@pytest.mark.parametrize(
    ("name", "code", "machine", "cause", "fix"),
    [
        ("user namespace", errno.EINVAL, PLAIN, "without user namespaces", "CONFIG_USER_NS=y"),
        ("net namespace", errno.EINVAL, PLAIN, "without net namespaces", "CONFIG_NET_NS=y"),
        (
            "read-only mounts",
            errno.ENOSYS,
            replace(PLAIN, release="5.10.0-30-amd64"),
            "Linux 5.10.0-30-amd64 is too old",
            "Linux 5.12",
        ),
        ("openat2", errno.ENOSYS, replace(PLAIN, release="4.19.0"), "too old", "Linux 5.6"),
        ("openat2", errno.ENOSYS, DOCKER, "its seccomp profile", "seccomp=unconfined"),
        (
            "proc",
            errno.EPERM,
            replace(PLAIN, container="docker", covered_proc=("/proc/kcore", "/proc/keys")),
            "covered here (/proc/kcore, /proc/keys)",
            "systempaths=unconfined",
        ),
        (
            "pivot root",
            errno.EINVAL,
            replace(PLAIN, root_kind="rootfs"),
            "initial ramfs",
            "switch_root",
        ),
        ("seccomp", errno.EINVAL, PLAIN, "without seccomp", "CONFIG_SECCOMP_FILTER=y"),
        (
            "unprivileged identity",
            errno.EPERM,
            replace(PLAIN, uid=0, mapped_ids=1),
            "a user namespace of 1 uid(s)",
            "ordinary user",
        ),
        (
            "namespaces of root",
            errno.EPERM,
            replace(DOCKER, uid=0),
            "the root of this container (docker) lacks capabilities",
            "ordinary user",
        ),
        (
            "interpreter for landlock",
            errno.EACCES,
            replace(PLAIN, uid=0),
            "where it lies",
            "/usr/bin/python3",
        ),
    ],
)
def test_each_refusal_has_its_own_cause(
    name: str, code: int, machine: Machine, cause: str, fix: str
) -> None:
    found_cause, found_fix = explain(name, code, machine)

    assert cause in found_cause
    assert fix in found_fix


@pytest.mark.parametrize(
    ("machine", "cause"),
    [
        (replace(PLAIN, release="6.1.0"), "too old"),
        (
            replace(PLAIN, release="6.12.1", security_modules=("lockdown", "yama")),
            "not among the active security modules (lockdown, yama)",
        ),
        (replace(PLAIN, release="6.12.1"), "built without Landlock"),
        (replace(DOCKER, release="6.12.1"), "its seccomp profile"),
    ],
)
def test_the_reason_for_missing_landlock_is_named(machine: Machine, cause: str) -> None:
    assert cause in explain("landlock", errno.ENOSYS, machine)[0]


BOTH = frozenset({"memory", "pids"})


@pytest.mark.parametrize(
    ("machine", "cause", "fix"),
    [
        (PLAIN, "no control groups are mounted", ""),
        (
            replace(PLAIN, groups=GroupFacts(version_2="/sys/fs/cgroup")),
            "memory and pids controllers",
            "cgroup_enable=memory",
        ),
        (
            replace(DOCKER, groups=GroupFacts(version_1=BOTH, read_only=True)),
            "read-only",
            "docker run --memory",
        ),
        (
            replace(PLAIN, groups=GroupFacts(version_1=BOTH)),
            "an ordinary user may not",
            "as root",
        ),
        (
            replace(
                PLAIN, groups=GroupFacts(version_2="/sys/fs/cgroup", version_2_controllers=BOTH)
            ),
            "an ordinary user may not",
            "systemd-run --user --scope",
        ),
    ],
)
def test_what_is_missing_of_control_groups_is_named(machine: Machine, cause: str, fix: str) -> None:
    found_cause, found_fix = explain("control groups", 0, machine)

    assert cause in found_cause
    assert fix in found_fix


def test_limits_that_are_not_kept_point_at_swap() -> None:
    assert "swapaccount=1" in explain("group limits", 0, PLAIN)[1]


@pytest.mark.parametrize(("code", "said"), [(errno.EPERM, "EPERM"), (0, "no effect")])
def test_what_nothing_explains_is_admitted(code: int, said: str) -> None:
    found_cause, found_fix = explain("user namespace", code, PLAIN)

    assert said in found_cause
    assert "nothing we know of this machine explains it" in found_cause
    assert "assay doctor --json" in found_fix
