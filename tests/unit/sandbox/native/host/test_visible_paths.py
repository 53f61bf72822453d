import importlib
import sys
import sysconfig
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.sandbox.native.guest.jail_spec import INNER_ID
from assay.sandbox.native.host.visible_paths import HOME, INTERPRETER, Layout, build_layout


@pytest.fixture(scope="module")
def layout() -> Layout:
    return build_layout(("/usr/bin",))


def sources(layout: Layout) -> list[Path]:
    return [Path(source) for source, _ in (*layout.root.binds, *layout.root.copies)]


def file_of(layout: Layout, path: str) -> str:
    return dict(layout.root.files)[path]


def test_what_is_not_there_cannot_be_made_readable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        build_layout((), (tmp_path / "nothing",))


@pytest.mark.parametrize("folder", ["/tmp", "/dev", "/proc"])
def test_what_a_sandbox_has_of_its_own_hides_what_the_machine_has_there(folder: str) -> None:
    with pytest.raises(UsageError, match=f"has a {folder} of its own"):
        build_layout((), (Path(folder),))


def test_everything_that_is_bound_exists(layout: Layout) -> None:
    assert [path for path in sources(layout) if not path.exists()] == []


@pytest.mark.parametrize(
    "secret",
    ["/etc/shadow", "/etc/passwd", "/root/.ssh", "/home", "/var", "/run", "/proc", "/sys", "/dev"],
)
def test_nothing_is_bound_that_holds_a_secret_of_the_host(layout: Layout, secret: str) -> None:
    holders = [path for path in sources(layout) if Path(secret).is_relative_to(path)]

    assert holders == []


def test_neither_the_environment_nor_the_project_is_bound_as_a_whole(layout: Layout) -> None:
    bound = sources(layout)

    for folder in (Path(sys.prefix), Path(sys.prefix).parent, Path.home()):
        assert folder not in bound
        assert not any(folder.is_relative_to(path) for path in bound)


def test_small_files_of_etc_cost_no_mount(layout: Layout) -> None:
    etc = [Path(source) for source, target in layout.root.binds if target.startswith("/etc/")]

    assert all(path.is_dir() or path.stat().st_size > 1 << 20 for path in etc)
    assert all(target.startswith("/etc/") for _, target in layout.root.copies)


def test_our_own_code_is_bound_without_the_package_around_it(layout: Layout) -> None:
    package = Path(importlib.import_module("assay").__file__ or "").parent
    ours = [path for path in sources(layout) if path.is_relative_to(package)]

    assert ours == [package / "sandbox" / "native"]


def test_every_place_in_the_jail_is_neutral(layout: Layout) -> None:
    targets = [target for _, target in (*layout.root.binds, *layout.root.copies)]
    allowed = ("/usr", "/bin", "/sbin", "/lib", "/etc", HOME)

    assert [target for target in targets if not target.startswith(allowed)] == []
    assert not any(sys.prefix in target for target in targets if sys.prefix != "/usr")


def test_no_path_of_the_hosts_environment_is_in_the_programs_environment(layout: Layout) -> None:
    host = {sys.prefix, sys.base_prefix, str(Path.home())} - {"/usr", "/"}

    assert [name for name, value in layout.env.items() if any(path in value for path in host)] == []


def test_the_environment_is_small_and_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")

    layout = build_layout(())

    for env in (layout.env, layout.host_env):
        assert "SECRET_TOKEN" not in env
        assert "PYTHONPATH" not in env
        assert "hunter2" not in "".join(env.values())


def test_programs_find_their_interpreter_first(layout: Layout) -> None:
    assert layout.env["PATH"].split(":")[0] == str(Path(INTERPRETER).parent)


def test_the_jail_knows_one_user_and_it_is_not_root(layout: Layout) -> None:
    users = file_of(layout, "/etc/passwd").splitlines()

    assert [line.split(":")[2] for line in users] == [str(INNER_ID)]


def test_the_interpreter_has_the_packages_of_its_environment(layout: Layout) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("not in a virtual environment")

    packages = Path(sysconfig.get_path("purelib")).resolve()
    assert packages in sources(layout)
    assert "include-system-site-packages = false" in file_of(layout, f"{HOME}/venv/pyvenv.cfg")


def test_commands_of_packages_name_the_interpreter_of_the_jail(layout: Layout) -> None:
    script = file_of(layout, f"{HOME}/venv/bin/pytest")

    assert script.startswith(f"#!{INTERPRETER}\n")
    assert "sys.exit(" in script


def test_our_own_command_is_not_offered(layout: Layout) -> None:
    assert f"{HOME}/venv/bin/assay" not in dict(layout.root.files)


def test_a_toolchain_is_bound_at_a_neutral_path_and_found_on_the_path(tmp_path: Path) -> None:
    for name in ("bin/node", "include/node/node_version.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    layout = build_layout((str(tmp_path / "bin"),))

    assert (str(tmp_path), f"{HOME}/toolchains/node") in layout.root.binds
    assert f"{HOME}/toolchains/node/bin" in layout.env["PATH"].split(":")
    assert str(tmp_path) not in "".join(layout.env.values())
    assert f"{tmp_path}/bin" in layout.host_env["PATH"].split(":")


def test_more_of_the_host_is_bound_at_its_own_path_if_asked_for() -> None:
    layout = build_layout((), (Path("/var/lib"),))

    assert ("/var/lib", "/var/lib") in layout.root.binds
    assert "/var/lib" in layout.readable


def test_what_the_landlock_tier_may_read_is_named_once(layout: Layout) -> None:
    assert len(set(layout.readable)) == len(layout.readable)
    assert {str(path) for path in sources(layout)} <= set(layout.readable)


def test_what_the_landlock_tier_may_read_is_no_link(layout: Layout) -> None:
    assert [path for path in layout.readable if Path(path).is_symlink()] == []


def test_system_folders_that_are_links_stay_links(layout: Layout) -> None:
    linked = {folder for folder in ("/bin", "/lib", "/sbin") if Path(folder).is_symlink()}

    assert linked <= dict(layout.root.links).keys()
    assert not linked & {target for _, target in layout.root.binds}
