from pathlib import Path

from assay.sandbox.native.doctor.host_info import Machine, read_machine

HOST_MOUNTS = """\
22 27 0:21 / /proc rw,nosuid - proc proc rw
23 22 0:40 / /proc/sys/fs/binfmt_misc rw,relatime shared:14 - autofs systemd-1 rw,fd=29
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
35 31 0:32 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
50 27 0:50 / /mnt/with\\040space rw - tmpfs tmpfs rw
"""
DOCKER_MOUNTS = """\
600 500 0:70 / / rw,relatime - overlay overlay rw,lowerdir=/a
601 600 0:71 / /proc rw,nosuid - proc proc rw
602 601 0:71 /bus /proc/bus ro,relatime - proc proc rw
603 601 0:72 / /proc/kcore rw,nosuid - tmpfs tmpfs rw,mode=755
604 600 0:73 / /sys ro,nosuid - sysfs sysfs ro
605 604 0:31 / /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
606 604 0:32 / /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids
"""


def machine_with(root: Path, **files: str) -> Machine:
    """A machine whose files have these contents; `__` in a name stands for a slash."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return read_machine(root)


def test_a_machine_that_tells_nothing_counts_as_plain(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)

    assert machine.container == ""
    assert machine.userns_clone is None
    assert not machine.apparmor_restricts
    assert not machine.in_user_namespace
    assert not machine.chrooted


def test_sysctls_are_read(tmp_path: Path) -> None:
    machine = machine_with(
        tmp_path,
        proc__sys__kernel__unprivileged_userns_clone="0\n",
        proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
        proc__sys__user__max_user_namespaces="0\n",
        proc__sys__user__max_net_namespaces="100\n",
    )

    assert machine.userns_clone == 0
    assert machine.apparmor_restricts
    assert machine.namespace_limits == {
        "user.max_net_namespaces": 100,
        "user.max_user_namespaces": 0,
    }


def test_a_host_is_not_taken_for_a_container(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, proc__self__mountinfo=HOST_MOUNTS, proc__1__cgroup="0::/\n")

    assert machine.container == ""
    assert machine.covered_proc == ()
    assert machine.root_kind == "ext4"
    assert machine.groups.version_2 == "/sys/fs/cgroup"
    assert not machine.groups.read_only


def test_a_container_is_recognised_with_what_it_covers(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()

    machine = machine_with(
        tmp_path,
        proc__self__mountinfo=DOCKER_MOUNTS,
        proc__self__status="Name:\tpython\nSeccomp:\t2\n",
        proc__self__attr__current="docker-default (enforce)\n",
    )

    assert machine.container == "docker"
    assert machine.seccomp_filtered
    assert machine.apparmor_profile == "docker-default"
    assert machine.covered_proc == ("/proc/bus", "/proc/kcore")
    assert machine.groups.version_1 >= {"memory", "pids"}
    assert machine.groups.read_only


def test_a_container_is_recognised_by_the_group_of_its_first_process(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, proc__1__cgroup="0::/kubepods/besteffort/pod1\n")

    assert machine.container == "kubernetes"


def test_a_mark_left_on_the_disk_does_not_make_a_container(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    namespaces = tmp_path / "proc" / "self" / "ns"
    namespaces.mkdir(parents=True)
    (namespaces / "pid").symlink_to("pid:[4026531836]")

    assert read_machine(tmp_path).container == ""


def test_the_controllers_of_the_unified_tree_are_read(tmp_path: Path) -> None:
    machine = machine_with(
        tmp_path,
        proc__self__mountinfo=HOST_MOUNTS,
        **{"sys__fs__cgroup__cgroup.controllers": "cpu memory pids\n"},
    )

    assert machine.groups.version_2_controllers == {"cpu", "memory", "pids"}


def test_a_user_namespace_with_few_ids_is_recognised(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, proc__self__uid_map="         0       1001          1\n")

    assert machine.in_user_namespace
    assert machine.mapped_ids == 1


def test_the_first_user_namespace_has_all_ids(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, proc__self__uid_map="         0          0 4294967295\n")

    assert not machine.in_user_namespace


def test_a_chroot_has_no_mount_of_its_own_at_the_root(tmp_path: Path) -> None:
    inside = "90 27 254:0 /chroot/proc /proc rw - proc proc rw\n"

    assert machine_with(tmp_path, proc__self__mountinfo=inside).chrooted


def test_an_selinux_label_is_no_apparmor_profile(tmp_path: Path) -> None:
    machine = machine_with(
        tmp_path,
        proc__self__attr__current="unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0",
        sys__fs__selinux__enforce="1",
    )

    assert machine.apparmor_profile == ""
    assert machine.selinux_enforcing


def test_a_kernel_version_is_read_from_its_release() -> None:
    assert Machine(release="6.8.0-45-generic").version == (6, 8)
    assert Machine(release="unreadable").version is None
