import os
from collections.abc import Generator
from pathlib import Path

import pytest

from assay.sandbox.native.kernel import cgroups
from assay.sandbox.native.kernel.cgroups import ControlGroup, ControlGroups, GroupUsage
from tests.support.channels import open_descriptors
from tests.support.children import a_child
from tests.support.forked import outcome_of
from tests.support.requirements import require

NOBODY = 65534


def a_group_of_version_1(tmp_path: Path) -> tuple[ControlGroup, dict[str, Path]]:
    """A group whose controllers have a hierarchy each, on an ordinary file system."""
    homes = {name: tmp_path / name for name in ("memory", "pids", "cpu")}
    groups = cgroups._Groups(*homes.values(), unified=False)  # noqa: SLF001 - the kernel makes no such files for us
    return groups.open_group("1"), {name: home / "1" for name, home in homes.items()}


def a_group_of_version_2(tmp_path: Path) -> tuple[ControlGroup, Path]:
    home = tmp_path / "engine"
    groups = cgroups._Groups(home, home, home, unified=True)  # noqa: SLF001 - see above
    return groups.open_group("1"), home / "1"


def fill(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_group_that_cannot_be_entered_everywhere_leaves_nothing_open(tmp_path: Path) -> None:
    group, folders = a_group_of_version_1(tmp_path)
    fill(folders["memory"], tasks="")
    before = open_descriptors()

    with pytest.raises(FileNotFoundError):
        group.open_entries()

    assert open_descriptors() == before


def test_version_1_is_read_from_three_hierarchies(tmp_path: Path) -> None:
    group, folders = a_group_of_version_1(tmp_path)
    fill(folders["cpu"], cpuacct__usage="1500000000\n")
    fill(
        folders["memory"],
        memory__max_usage_in_bytes="4096\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    fill(folders["pids"], pids__events="max 3\n")

    usage = group.usage()

    assert usage == GroupUsage(cpu_s=1.5, peak_memory_bytes=4096, oom_kills=2, refused_forks=3)


def test_version_2_is_read_from_one_folder(tmp_path: Path) -> None:
    group, folder = a_group_of_version_2(tmp_path)
    fill(
        folder,
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
        memory__peak="8192\n",
        memory__events="low 0\nhigh 0\nmax 9\noom 5\noom_kill 1\n",
        pids__events="max 4\n",
    )

    usage = group.usage()

    assert usage == GroupUsage(cpu_s=2.5, peak_memory_bytes=8192, oom_kills=1, refused_forks=4)


def test_a_kernel_that_keeps_no_peak_is_asked_for_what_is_used_now(tmp_path: Path) -> None:
    group, folder = a_group_of_version_2(tmp_path)
    fill(folder, memory__current="1024\n")

    assert group.usage().peak_memory_bytes == 1024


def test_counters_that_are_not_there_or_say_nothing_count_as_nothing(tmp_path: Path) -> None:
    group, folders = a_group_of_version_1(tmp_path)
    fill(folders["memory"], memory__max_usage_in_bytes="", memory__oom_control="\n")

    assert group.usage() == GroupUsage(cpu_s=0.0, peak_memory_bytes=0)


def test_limits_of_version_1_count_swap_with_memory(tmp_path: Path) -> None:
    group, folders = a_group_of_version_1(tmp_path)
    fill(folders["memory"], memory__limit_in_bytes="", memory__memsw__limit_in_bytes="")
    fill(folders["pids"], pids__max="")

    group.apply(memory_bytes=1 << 20, processes=5)

    assert (folders["memory"] / "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert (folders["memory"] / "memory.memsw.limit_in_bytes").read_text() == str(1 << 20)
    assert (folders["pids"] / "pids.max").read_text() == "5"


def test_limits_of_version_2_allow_no_swap(tmp_path: Path) -> None:
    group, folder = a_group_of_version_2(tmp_path)
    fill(folder, memory__max="", memory__swap__max="", pids__max="")

    group.apply(memory_bytes=1 << 20, processes=5)

    assert (folder / "memory.max").read_text() == str(1 << 20)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "5"


def test_an_engine_of_version_2_hands_its_controllers_on(tmp_path: Path) -> None:
    a_group_of_version_2(tmp_path)

    for folder in (tmp_path, tmp_path / "engine"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_what_is_shared_out_already_is_not_asked_for_again(tmp_path: Path) -> None:
    # A group with processes refuses to be asked, even for what it has granted.
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")

    a_group_of_version_2(tmp_path)

    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_a_group_has_one_entry_per_hierarchy(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    group, folders = a_group_of_version_1(tmp_path / "1")
    for folder in folders.values():
        fill(folder, tasks="")

    entries = group.open_entries()

    for entry in entries:
        os.write(entry, b"0")
        os.close(entry)
    assert [(folder / "tasks").read_text() for folder in folders.values()] == ["0", "0", "0"]


def test_removing_a_group_that_is_busy_or_gone_is_no_error(tmp_path: Path) -> None:
    group, folders = a_group_of_version_1(tmp_path)
    fill(folders["pids"], busy="")
    folders["cpu"].rmdir()

    group.remove()

    assert not folders["memory"].exists()
    assert folders["pids"].exists()


@pytest.mark.parametrize(
    ("mountinfo", "found"),
    [
        (
            (
                "30 29 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
                "31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            {"memory": "/sys/fs/cgroup/memory", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct"},
        ),
        (
            "30 29 0:26 / /sys/fs/cgroup rw shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n",
            {"": "/sys/fs/cgroup"},
        ),
        ("36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue\n", {}),
    ],
    ids=["version 1", "version 2", "neither"],
)
def test_hierarchies_are_found_among_the_mounts(
    monkeypatch: pytest.MonkeyPatch, mountinfo: str, found: dict[str, str]
) -> None:
    serve(monkeypatch, mountinfo)

    mounts = cgroups._mounts()  # noqa: SLF001 - see above

    assert {name: str(mounts[name]) for name in found} == found
    assert bool(mounts) == bool(found)


def serve(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have every file that is read hold this text."""

    def read_text(path: Path) -> str:
        del path
        return text

    monkeypatch.setattr(cgroups.Path, "read_text", read_text)


def test_our_own_group_is_known_by_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, "5:cpu,cpuacct:/user/x\n3:memory:/user/y\n1:name=systemd:/\n0::/user:z\n")

    own = cgroups._own_groups()  # noqa: SLF001 - see above

    assert (own["cpuacct"], own["memory"], own[""]) == ("user/x", "user/y", "user:z")


OWN = "user.slice/user@1000.service/app.slice/run-1.scope"


def a_tree_of_version_2(
    monkeypatch: pytest.MonkeyPatch, top: Path, *, handed_over: tuple[str, ...]
) -> None:
    """What systemd makes for a user, on an ordinary file system; only root's is read-only here."""
    for folder in (top / OWN, *(top / OWN).parents):
        if folder.is_relative_to(top):
            folder.mkdir(parents=True, exist_ok=True)
            fill(folder, cgroup__controllers="cpu memory pids\n")
    for name in handed_over:
        fill(top / name, cgroup__procs="")
    monkeypatch.setattr(cgroups, "_mounts", lambda: {"": top})
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": OWN})


def homes() -> list[Path]:
    return [place.folders[0] for place in cgroups._hierarchies()]  # noqa: SLF001 - see above


def test_groups_of_version_2_are_made_below_the_nearest_group_that_was_handed_to_us(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slice_above = "user.slice/user@1000.service/app.slice"
    service = "user.slice/user@1000.service"
    a_tree_of_version_2(monkeypatch, tmp_path, handed_over=(OWN, slice_above, service))

    assert homes() == [tmp_path / OWN, tmp_path / slice_above, tmp_path / service]


def test_where_no_group_of_version_2_was_handed_to_us_none_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_tree_of_version_2(monkeypatch, tmp_path, handed_over=())

    assert homes() == []
    assert not cgroups.open_groups("1-abc").enforcing


def test_a_group_of_version_2_without_the_controllers_is_no_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_tree_of_version_2(monkeypatch, tmp_path, handed_over=(OWN, "user.slice"))
    fill(tmp_path / OWN, cgroup__controllers="cpu memory\n")

    assert homes() == [tmp_path / "user.slice"]


def test_in_a_container_whose_tree_we_do_not_see_the_top_is_the_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_tree_of_version_2(monkeypatch, tmp_path, handed_over=(".",))
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": "docker/0123"})

    assert homes() == [tmp_path]


def test_a_place_that_refuses_leaves_nothing_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_tree_of_version_2(monkeypatch, tmp_path, handed_over=(OWN, "user.slice"))
    # An ordinary file system makes none of the kernel's files, so every place refuses in the end.
    assert not cgroups.open_groups("1-abc").enforcing

    assert not (tmp_path / OWN / "assay-1-abc" / "probe").exists()
    assert (tmp_path / "user.slice" / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.fixture
def groups() -> Generator[ControlGroups]:
    made = cgroups.open_groups(f"test-{os.getpid()}")
    require("cgroup", available=made.enforcing, why="no control group can be made here")
    yield made
    for folder in made.folders:
        Path(folder).rmdir()


def test_the_kernel_counts_who_has_entered_a_group(groups: ControlGroups) -> None:
    group = groups.open_group("1")
    group.apply(memory_bytes=64 << 20, processes=1)

    def enter_and_fork() -> None:
        for entry in group.open_entries():
            os.write(entry, b"0")
        with pytest.raises(BlockingIOError):
            os.fork()

    with a_child(enter_and_fork):
        usage = group.usage()
    group.remove()

    assert usage.refused_forks == 1
    assert usage.oom_kills == 0
    assert usage.cpu_s is not None
    assert usage.cpu_s > 0


def test_a_probe_leaves_the_folders_of_the_engine_and_nothing_in_them(
    groups: ControlGroups,
) -> None:
    below = [entry for folder in groups.folders for entry in Path(folder).iterdir()]

    assert not [entry for entry in below if entry.is_dir()]


def test_somebody_who_may_make_no_groups_has_none_and_says_so() -> None:
    require("root", available=os.geteuid() == 0, why="only root becomes somebody else")

    outcome = outcome_of(lambda: cgroups.open_groups("refused").enforcing, uid=NOBODY)

    assert outcome == "False"


def test_without_groups_nothing_is_counted_and_nothing_is_refused() -> None:
    groups = ControlGroups()
    group = groups.open_group("1")

    group.apply(memory_bytes=1, processes=1)
    group.remove()

    assert not groups.enforcing
    assert groups.folders == ()
    assert group.open_entries() == []
    assert group.usage() == GroupUsage()


def test_the_groups_of_an_engine_are_found_by_its_name(groups: ControlGroups) -> None:
    assert set(cgroups.folders_of(f"test-{os.getpid()}")) == set(groups.folders)
    assert cgroups.folders_of("never-opened") == ()
