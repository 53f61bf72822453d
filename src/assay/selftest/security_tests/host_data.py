"""Attacks on data of the host: its files, devices, secrets and privileges."""

import json
import platform
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from assay.contracts.execution import Isolation
from assay.selftest.programs import describe, python, run_alone
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
)
from assay.selftest.security_tests.probe import (
    FIND_IN,
    LIST_ANY,
    LIST_CONTROL,
    OPEN_ANY_FOR_WRITING,
    READ_ANY,
    READ_CONTROL,
    build_probe,
    build_probes,
)

_PATIENT = replace(TIGHT, wall_s=30.0, cpu_s=30.0)
"""For attackers that search all files and processes."""
_CONFIG = AttackConfig(group="host_data")
_APART = replace(_CONFIG, needs=Isolation.ISOLATED)
_SHARED_KERNEL = replace(_CONFIG, not_applicable_from=Isolation.KERNEL)
_OF_AN_IMAGE = frozenset({"logs_and_spools_are_not_listed"})
_DEVICES = frozenset({"file_systems_and_tunnels_cannot_be_made", "consoles_cannot_be_written"})


def _config(name: str) -> AttackConfig:
    if name in _OF_AN_IMAGE:
        because = "the files of such a backend are those of an image"
        return replace(_CONFIG, not_applicable_from=Isolation.KERNEL, moot_because=because)
    if name in _DEVICES:
        because = "the devices are those of a kernel that is not the host's"
        return replace(_CONFIG, not_applicable_from=Isolation.KERNEL, moot_because=because)
    return _CONFIG


_UNREADABLE = {
    "the_password_hashes_are_unreadable": "['/etc/shadow', '/etc/gshadow', '/etc/shadow-']",
    "the_keys_of_the_ssh_server_are_unreadable": (
        "[f'/etc/ssh/ssh_host_{kind}_key' for kind in ('rsa', 'ecdsa', 'ed25519')]"
    ),
    "a_file_of_the_host_is_unreadable": "[CANARY['secret_file']]",
    "a_file_of_the_host_is_unreadable_through_the_roots_of_processes": (
        "[f'/proc/{pid}/root' + CANARY['secret_file'] "
        "for pid in ('self', 1, os.getppid(), CANARY['pid'], CANARY['victim_pid'])]"
    ),
    "a_file_of_the_host_is_unreadable_through_the_places_of_processes": (
        "[f'/proc/{pid}/cwd' + up + CANARY['secret_file'] "
        "for pid in ('self', 1, os.getppid(), CANARY['pid']) for up in ('', '/..' * 20)]"
    ),
    "a_file_of_the_host_is_unreadable_through_the_thread_directory": (
        "[f'/proc/{pid}/task/{pid}/root' + CANARY['secret_file'] for pid in (1, os.getppid())]"
    ),
    "the_secrets_of_the_user_are_unreadable": (
        "[CANARY['home'] + '/' + name for name in ('.ssh/id_rsa', '.ssh/id_ed25519', "
        "'.ssh/authorized_keys', '.netrc', '.git-credentials', '.aws/credentials', "
        "'.docker/config.json', '.kube/config', '.bash_history', '.bashrc', '.profile')]"
    ),
    "the_memory_of_the_machine_is_unreadable": (
        "['/dev/mem', '/dev/kmem', '/dev/port', '/proc/kcore', '/proc/kpagecount']"
    ),
    "the_disks_of_the_machine_are_unreadable": (
        "['/dev/' + name for name in ('sda', 'sda1', 'vda', 'vda1', 'nvme0n1', 'xvda', 'loop0', "
        "'dm-0', 'root', 'sr0', 'md0')]"
    ),
    "the_log_of_the_kernel_is_unreadable": "['/dev/kmsg', '/proc/kmsg']",
    "the_tables_of_the_kernel_are_unreadable": (
        "['/proc/slabinfo', '/proc/vmallocinfo', '/proc/timer_list', '/proc/sched_debug', "
        "'/sys/kernel/debug/sleep_time', '/sys/kernel/security/lockdown']"
    ),
    "the_identity_of_the_machine_is_unreadable": (
        "['/etc/machine-id', '/var/lib/dbus/machine-id', '/sys/class/dmi/id/product_uuid']"
    ),
    "the_secrets_of_services_are_unreadable": (
        "['/run/secrets/kubernetes.io/serviceaccount/token', '/etc/kubernetes/admin.conf', "
        "'/var/lib/cloud/instance/user-data.txt', '/etc/docker/key.json']"
    ),
}

UNREADABLE = build_probes(
    _UNREADABLE,
    detector=READ_ANY,
    attack="TARGETS = {row}",
    control=READ_CONTROL,
    config=_CONFIG,
)

_UNLISTED = {
    "the_home_of_root_is_not_listed": "['/root', '/root/.ssh', '/root/.config']",
    "the_homes_of_users_are_not_listed": "['/home', CANARY['home'], CANARY['home'] + '/.ssh']",
    "a_directory_of_the_host_is_not_listed": "[CANARY['directory']]",
    "logs_and_spools_are_not_listed": "['/var/log', '/var/spool', '/var/lib', '/var/backups']",
    "the_boot_partition_is_not_listed": "['/boot', '/boot/efi', '/efi']",
    "devices_of_the_machine_are_not_listed": (
        "['/dev/disk', '/dev/mapper', '/dev/input', '/dev/dri', '/dev/block', '/dev/bus']"
    ),
    "the_tracing_of_the_kernel_is_not_listed": (
        "['/sys/kernel/tracing', '/sys/kernel/debug', '/sys/fs/bpf']"
    ),
}

UNLISTED = build_probes(
    _UNLISTED, detector=LIST_ANY, attack="TARGETS = {row}", control=LIST_CONTROL, config=_config
)

_UNWRITABLE = {
    "core_pattern_cannot_be_set": "['/proc/sys/kernel/core_pattern']",
    "the_module_loader_cannot_be_set": "['/proc/sys/kernel/modprobe', '/sys/kernel/uevent_helper']",
    "sysrq_cannot_be_triggered": "['/proc/sysrq-trigger', '/proc/sys/kernel/sysrq']",
    "binary_formats_cannot_be_registered": "['/proc/sys/fs/binfmt_misc/register']",
    "settings_of_the_kernel_cannot_be_set": (
        "['/proc/sys/vm/overcommit_memory', '/proc/sys/kernel/randomize_va_space', "
        "'/proc/sys/kernel/yama/ptrace_scope', '/proc/sys/net/ipv4/ip_forward', "
        "'/proc/sys/kernel/hostname', '/proc/sys/user/max_user_namespaces', "
        "'/proc/sys/fs/protected_symlinks']"
    ),
    "control_groups_cannot_be_changed": (
        "[f'/sys/fs/cgroup/{path}' for path in ('cgroup.procs', 'memory/tasks', 'release_agent', "
        "'memory/memory.limit_in_bytes', 'pids/tasks', 'memory.max', 'cgroup.kill')]"
    ),
    "programs_of_the_system_cannot_be_changed": (
        "['/bin/sh', '/usr/bin/env', '/etc/passwd', '/etc/ld.so.cache', os.__file__]"
    ),
    "the_interpreter_cannot_be_changed": (
        "[os.path.realpath(__import__('sys').executable), os.path.realpath('/proc/self/exe')]"
    ),
    "a_file_of_the_host_cannot_be_changed": "[CANARY['writable_file']]",
    "virtual_machines_cannot_be_made": "['/dev/kvm', '/dev/vhost-net', '/dev/vhost-vsock']",
    "file_systems_and_tunnels_cannot_be_made": "['/dev/fuse', '/dev/net/tun', '/dev/loop-control']",
    "consoles_cannot_be_written": (
        "['/dev/console', '/dev/tty0', '/dev/tty1', '/dev/ttyS0', '/dev/tty', '/dev/pts/0']"
    ),
}

UNWRITABLE = build_probes(
    _UNWRITABLE,
    detector=OPEN_ANY_FOR_WRITING,
    attack="TARGETS = {row}",
    control=READ_CONTROL,
    config=_config,
)

_UNCONNECTED = {
    "the_container_engine_is_out_of_reach": (
        "['/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', "
        "'/run/podman/podman.sock', '/run/crio/crio.sock']"
    ),
    "the_message_bus_is_out_of_reach": (
        "['/run/dbus/system_bus_socket', '/run/systemd/private', '/run/systemd/notify', "
        "f'/run/user/{os.getuid()}/bus', '/run/user/0/bus']"
    ),
    "agents_and_displays_are_out_of_reach": (
        "['/tmp/.X11-unix/X0', '/run/user/1000/gnupg/S.gpg-agent', '/run/snapd.socket', "
        "'/var/run/nscd/socket', '/run/systemd/journal/stdout', '/dev/log']"
    ),
}

UNCONNECTED = build_probes(
    _UNCONNECTED,
    detector="""
        import socket
        def connect_any():
            for target in TARGETS:
                try:
                    if target != "pair":
                        socket.socket(socket.AF_UNIX).connect(target)
                    else:
                        mine, other = socket.socketpair()
                        mine.send(b"connected")
                except OSError:
                    continue
                return target
        judge(connect_any)
    """,
    attack="TARGETS = {row}",
    control="TARGETS = ['/no/such/socket', 'pair']",
    config=_CONFIG,
)

KERNEL_ADDRESSES = build_probe(
    "addresses_of_the_kernel_are_hidden",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/kallsyms', r'^0*[1-9a-f][0-9a-f]* [tTdD] '",
    control="""
        with open("planted", "w") as file:
            file.write("0000000000000000 A zero\\nffffffff81000000 T _stext\\n")
        TARGET, NEEDLE = "planted", r"^0*[1-9a-f][0-9a-f]* [tTdD] "
    """,
    config=_SHARED_KERNEL,
)

SHARED_MEMORY = build_probe(
    "shared_memory_of_the_host_is_not_listed",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/sysvipc/shm', rf'^ *{CANARY[\"shm_key\"]} '",
    control="""
        with open("planted", "w") as file:
            file.write(f"       key      shmid perms\\n {CANARY['shm_key']}          0   666\\n")
        TARGET, NEEDLE = "planted", rf"^ *{CANARY['shm_key']} "
    """,
    config=_APART,
)

MOUNTS = build_probe(
    "mounts_do_not_show_the_canaries_of_the_host",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/self/mountinfo', CANARY['directory']",
    control="""
        with open("planted", "w") as file:
            file.write(f"22 1 8:1 {CANARY['directory']} /mnt rw - ext4 /dev/sda1 rw\\n")
        TARGET, NEEDLE = "planted", CANARY["directory"]
    """,
    config=_CONFIG,
)

READ_ONLY_SYSTEM = build_probe(
    "nothing_but_workspace_and_temporary_files_is_writable",
    detector="""
        import tempfile
        permitted = tuple(map(os.path.realpath, [tempfile.gettempdir(), HERE, "/dev/shm"]))
        def make_any():
            for place in PLACES:
                real = os.path.realpath(place)
                if any(real == spared or real.startswith(spared + "/") for spared in permitted):
                    continue
                path = os.path.join(place, "assay-was-here")
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                except OSError:
                    continue
                os.unlink(path)
                return path
        judge(make_any)
    """,
    attack="""
        HERE = os.getcwd()
        PLACES = ["/", *("/" + name for name in os.listdir("/")), "/usr/local", "/usr/bin",
                  "/usr/local/lib", "/var/tmp", "/var/lock", "/run/lock", "/dev/mqueue", "/dev/pts",
                  os.path.dirname(os.__file__), os.path.dirname(HERE), os.path.expanduser("~root")]
    """,
    control="""
        import tempfile
        os.mkdir("own")
        PLACES, HERE = ["own"], "/no/such/place"
        tempfile.tempdir = "/no/such/place"
    """,
    config=_APART,
)

_DUMP_ENVIRONMENTS = """
    import json, os
    seen = [f"{name}={value}" for name, value in os.environ.items()]
    for pid in range(1, 70_000):
        try:
            with open(f"/proc/{pid}/environ", errors="replace") as file:
                seen += file.read().split("\\0")
        except OSError:
            pass
    print(json.dumps(seen))
"""
_TELLING_CHARACTERS = 8
_ORDINARY_NAMES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "MPLBACKEND", "PATH", "PWD",
     "SHELL", "SHLVL", "TERM", "TMPDIR", "TZ", "USER"}
)  # fmt: skip


async def _environments(context: AttackContext, *, given: bool) -> Finding:
    """Search for host variables in every environment that a program can read."""
    secret = context.canaries.secret
    program = replace(python(_DUMP_ENVIRONMENTS), env={"ASSAY_CANARY": secret} if given else {})
    result = await run_alone(context.backend, program, _PATIENT)
    assert result.succeeded, f"nothing was tested: {describe(result)}"
    seen = set(json.loads(result.stdout))
    leaked = {name for name, value in _host_variables() if f"{name}={value}" in seen}
    leaked |= {"ASSAY_CANARY"} if f"ASSAY_CANARY={secret}" in seen else set()
    return Finding(breached=bool(leaked), evidence=f"variables of the host: {sorted(leaked)}")


def _host_variables() -> list[tuple[str, str]]:
    try:
        environment = Path("/proc/self/environ").read_text(errors="replace")
    except OSError:
        return []  # not Linux, or unreadable even for this process
    pairs = [line.partition("=") for line in environment.split("\0")]
    # Short values, such as 1, are too common.
    return [
        (name, value)
        for name, _, value in pairs
        if len(value) >= _TELLING_CHARACTERS and name not in _ORDINARY_NAMES
    ]


ENVIRONMENT = build_attack(
    "the_environment_of_the_host_is_unknown",
    attack=partial(_environments, given=False),
    control=partial(_environments, given=True),
    config=_CONFIG,
)


async def _host_name(context: AttackContext, *, forbidden: str) -> Finding:
    source = "import platform, socket; print(platform.node(), socket.gethostname())"
    result = await run_alone(context.backend, python(source), TIGHT)
    assert result.succeeded, f"nothing was tested: {describe(result)}"
    names = result.stdout.split()
    return Finding(breached=(forbidden or names[0]) in names, evidence=f"it is called {names}")


HOST_NAME = build_attack(
    "the_name_of_the_host_is_unknown",
    attack=partial(_host_name, forbidden=platform.node()),
    control=partial(_host_name, forbidden=""),
    config=_APART,
)

_SEARCH = """
    import os, sys, tempfile
    found = []
    here = os.getcwd()
    for top in ("/", here, here + "/..", here + "/../..", tempfile.gettempdir()):
        for place, folders, names in os.walk(top):
            if os.path.samefile(place, "/"):
                folders[:] = [name for name in folders if name not in {"usr", "proc", "sys", "nix"}]
            if sys.argv[1][::-1] in names:
                found.append(place)
    for pid in [*range(1, 100), os.getppid()]:
        for way in ("root/app", "cwd", "root/tmp"):
            if os.path.exists(f"/proc/{pid}/{way}/{sys.argv[1][::-1]}"):
                found.append(pid)
    print("found", *found)
"""

_LEAVE_TEMPORARY = "import sys, tempfile; open(tempfile.gettempdir() + '/' + sys.argv[1], 'w')"


async def _other_workspace(context: AttackContext, *, own: bool) -> Finding:
    """Write a file in one sandbox, and let another one search the whole file system for it."""
    name = context.canaries.secret
    async with (
        context.backend.open_sandbox(_PATIENT) as one,
        context.backend.open_sandbox(_PATIENT) as other,
    ):
        owner = other if own else one
        await owner.write_file(PurePosixPath(name), b"")
        await owner.run(replace(python(_LEAVE_TEMPORARY), args=(name,)))
        result = await other.run(replace(python(_SEARCH), args=(name[::-1],)))
    assert result.stdout.startswith("found"), f"nothing was tested: {describe(result)}"
    return Finding(breached=len(result.stdout.split()) > 1, evidence=result.stdout)


OTHER_WORKSPACE = build_attack(
    "the_files_of_another_sandbox_are_nowhere",
    attack=partial(_other_workspace, own=False),
    control=partial(_other_workspace, own=True),
    config=_CONFIG,
)
