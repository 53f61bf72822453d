import json
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.execution import Limits
from assay.sandbox.docker.security import (
    ContainerPlan,
    build_profile,
    caps_for,
    container_config,
)
from assay.sandbox.native.kernel.seccomp_policy import build_policy

ROOT = Path(__file__).parents[4]


def config(*, runtime: str = "", limits: Limits | None = None) -> dict[str, Any]:
    plan = ContainerPlan(
        image="sha256:0",
        argv=("serve",),
        caps=caps_for(limits or Limits()),
        cpus=1.5,
        runtime=runtime,
    )
    return container_config(plan)


@pytest.mark.parametrize("runtime", ["", "runsc"])
def test_a_container_gets_nothing_it_does_not_need(runtime: str) -> None:
    asked = config(runtime=runtime)
    host = asked["HostConfig"]

    assert asked["NetworkDisabled"] is (runtime != "runsc")
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Init"] is True
    assert host["AutoRemove"] is True
    assert host["Memory"] == host["MemorySwap"] > 0
    assert host["PidsLimit"] > 0
    assert host["NanoCpus"] == 1_500_000_000
    assert asked["Env"] == []
    assert all("size=" in options and "nosuid" in options for options in host["Tmpfs"].values())


def test_nothing_of_the_host_is_mounted() -> None:
    host = config()["HostConfig"]

    assert not host.keys() & {"Binds", "Mounts", "VolumesFrom", "Devices", "Privileged", "PidMode"}


def test_nobody_in_an_ordinary_container_is_root() -> None:
    assert config()["User"] == "65532:65532"
    assert config()["HostConfig"]["CapAdd"] == []


def test_the_root_of_gvisors_kernel_can_become_somebody_else_and_nothing_more() -> None:
    asked = config(runtime="runsc")

    assert asked["User"] == "0:0"
    assert set(asked["HostConfig"]["CapAdd"]) == {"SETUID", "SETGID"}


def test_walls_stand_outside_of_the_limits() -> None:
    limits = Limits(memory_mb=300, processes=10, disk_mb=50)
    walls = caps_for(limits)

    assert walls.memory_mb > limits.memory_mb + limits.disk_mb
    assert walls.processes > limits.processes
    assert walls.disk_mb == limits.disk_mb


def test_a_container_that_waits_suits_sandboxes_of_many_sizes() -> None:
    small = Limits(memory_mb=128, processes=16, disk_mb=16)
    ordinary = Limits(memory_mb=256, processes=20, disk_mb=32)

    assert caps_for(small, files=False) == caps_for(ordinary, files=False)
    assert caps_for(small) != caps_for(ordinary), "gVisor's file systems have their size"


def allowed_by(profile: dict[str, Any]) -> set[str]:
    return {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
        for name in rule["names"]
    }


def test_the_profile_is_an_allow_list_that_the_engine_can_read() -> None:
    profile = build_profile("x86_64")

    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["architectures"] == ["SCMP_ARCH_X86_64"]
    assert json.loads(json.dumps(profile)) == profile


NEEDED_BY_NOBODY = """
    bpf keyctl add_key request_key io_uring_setup userfaultfd perf_event_open kexec_load ptrace
    init_module finit_module open_by_handle_at process_vm_writev reboot swapon quotactl
    """


@pytest.mark.parametrize("name", NEEDED_BY_NOBODY.split())
def test_the_profile_refuses_what_nobody_in_a_container_needs(name: str) -> None:
    assert name not in allowed_by(build_profile())


def test_programs_lose_nothing_that_their_own_filter_allows() -> None:
    assert build_policy().allowed <= allowed_by(build_profile())


def test_only_plain_families_of_sockets_can_be_opened() -> None:
    sockets = [rule for rule in build_profile()["syscalls"] if rule["names"] == ["socket"]]

    assert sorted(rule["args"][0]["value"] for rule in sockets) == [1, 2, 10]
    assert "socket" not in allowed_by(build_profile())


def test_of_netlink_only_routes_are_added_and_only_where_hosts_are_allowed() -> None:
    plain = build_profile()["syscalls"]

    (added,) = [rule for rule in build_profile(routes=True)["syscalls"] if rule not in plain]

    assert added["names"] == ["socket"]
    assert [(one["index"], one["value"]) for one in added["args"]] == [(0, 16), (2, 0)]
    assert all(one["op"] == "SCMP_CMP_EQ" for one in added["args"])


def test_the_profile_that_compose_reads_is_this_one() -> None:
    written = json.loads((ROOT / "deploy/seccomp.json").read_text())

    assert written == build_profile("x86_64"), "run `make seccomp`"
