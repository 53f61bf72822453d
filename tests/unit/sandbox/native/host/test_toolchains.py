from pathlib import Path

import pytest

from assay.sandbox.native.host.visible_paths import Toolchain, find_toolchains

NODE_MARKER = "include/node/node_version.h"
RUST_MARKER = "lib/rustlib/components"


def touched(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def a_node(prefix: Path) -> Path:
    touched(prefix / "bin" / "node")
    touched(prefix / NODE_MARKER)
    return prefix


def a_rustup(home: Path, settings: str) -> Path:
    """A rustup as it installs itself: proxies in `.cargo/bin`, toolchains in `.rustup`."""
    rustup = touched(home / ".cargo" / "bin" / "rustup")
    (rustup.parent / "rustc").symlink_to("rustup")
    touched(home / ".rustup" / "settings.toml").write_text(settings)
    touched(home / ".rustup" / "toolchains" / "stable" / "bin" / "rustc")
    touched(home / ".rustup" / "toolchains" / "stable" / RUST_MARKER)
    return rustup.parent


def test_a_distribution_of_its_own_is_offered(tmp_path: Path) -> None:
    prefix = a_node(tmp_path / "node-22")

    found = find_toolchains([str(prefix / "bin")])

    assert found == (Toolchain(name="node", prefix=str(prefix)),)


@pytest.mark.parametrize(
    ("name", "program", "marker"),
    [
        ("node", "node", NODE_MARKER),
        ("go", "go", "src/runtime/runtime.go"),
        ("java", "javac", "release"),
        ("rust", "rustc", RUST_MARKER),
    ],
)
def test_each_kind_is_known_by_its_program_and_a_file_only_its_top_has(
    tmp_path: Path, name: str, program: str, marker: str
) -> None:
    touched(tmp_path / "bin" / program)
    assert find_toolchains([str(tmp_path / "bin")]) == ()

    touched(tmp_path / marker)

    assert find_toolchains([str(tmp_path / "bin")]) == (Toolchain(name=name, prefix=str(tmp_path)),)


def test_a_link_leads_to_the_distribution_and_not_to_the_folder_it_lies_in(tmp_path: Path) -> None:
    prefix = a_node(tmp_path / "node-22")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "node").symlink_to(prefix / "bin" / "node")

    assert find_toolchains([str(folder)]) == (Toolchain(name="node", prefix=str(prefix)),)


@pytest.mark.parametrize("personal", [".ssh", ".config", ".local", ".bashrc", ".profile"])
def test_a_folder_with_a_persons_own_files_is_not_offered(tmp_path: Path, personal: str) -> None:
    prefix = a_node(tmp_path / "somebody")
    touched(prefix / personal)

    assert find_toolchains([str(prefix / "bin")]) == ()


def test_the_first_on_the_path_is_the_one_that_counts(tmp_path: Path) -> None:
    first, second = a_node(tmp_path / "first"), a_node(tmp_path / "second")

    found = find_toolchains([str(tmp_path), str(first / "bin"), str(second / "bin")])

    assert found == (Toolchain(name="node", prefix=str(first)),)


def test_what_lies_in_usr_is_there_already() -> None:
    assert find_toolchains(["/usr/bin", "/bin"]) == ()


def test_a_path_that_does_not_exist_is_no_trouble(tmp_path: Path) -> None:
    assert find_toolchains([str(tmp_path / "absent"), ""]) == ()


def test_rustup_stands_for_the_toolchain_it_has_been_told_to_use(tmp_path: Path) -> None:
    folder = a_rustup(tmp_path, 'default_toolchain = "stable"')

    found = find_toolchains([str(folder)])

    chosen = tmp_path / ".rustup" / "toolchains" / "stable"
    assert found == (Toolchain(name="rust", prefix=str(chosen)),)


@pytest.mark.parametrize(
    "settings",
    ["", "not = [toml", 'default_toolchain = "absent"', 'default_toolchain = ""'],
    ids=["nothing chosen", "unreadable", "not there", "empty"],
)
def test_a_rustup_that_does_not_say_what_it_uses_offers_nothing(
    tmp_path: Path, settings: str
) -> None:
    folder = a_rustup(tmp_path, settings)

    assert find_toolchains([str(folder)]) == ()


def test_a_rustup_cannot_lead_to_a_folder_that_is_no_toolchain(tmp_path: Path) -> None:
    touched(tmp_path / "secrets" / "key")
    folder = a_rustup(tmp_path, 'default_toolchain = "../../secrets"')

    assert find_toolchains([str(folder)]) == ()
