"""What is loaded, and when: looked at in fresh interpreters and in the import graph."""

import subprocess
import sys

import grimp
import pytest

import assay

FAR_SIDE = ("guest.launcher", "guest.zygote")
"""The processes of the native sandbox that run before and beside foreign code."""


def third_party_modules_after(statements: str) -> set[str]:
    """Run statements in a fresh interpreter and return the foreign packages they loaded."""
    script = f"""
import sys
at_start = set(sys.modules)
try:
    {statements}
finally:
    loaded = {{name.partition(".")[0] for name in set(sys.modules) - at_start}}
    print("\\n".join(loaded), file=sys.stderr)
"""
    process = subprocess.run(
        [sys.executable, "-I", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return set(process.stderr.split()) - sys.stdlib_module_names - {"assay"}


def test_importing_assay_loads_only_the_standard_library() -> None:
    assert third_party_modules_after("import assay") == set()


def test_the_check_for_foreign_packages_can_fail() -> None:
    assert "click" in third_party_modules_after("import click")


def test_help_loads_nothing_heavy() -> None:
    statements = "sys.argv = ['assay', '--help']; from assay.cli.main import main; main()"

    assert third_party_modules_after(statements) <= {"click"}


def test_the_public_names_are_sorted_and_true() -> None:
    assert assay.__all__ == sorted(set(assay.__all__))
    assert [name for name in assay.__all__ if not hasattr(assay, name)] == []


def test_an_unknown_public_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_everything'"):
        getattr(assay, "open_everything")  # noqa: B009 - an attribute that type checkers refuse


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("assay", include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("name", FAR_SIDE)
def test_the_far_side_of_the_sandbox_needs_only_itself_and_the_standard_library(
    graph: grimp.ImportGraph, name: str
) -> None:
    needed = graph.find_upstream_modules(f"assay.sandbox.native.{name}")

    own = {module for module in needed if module.startswith("assay.sandbox.native.")}
    assert needed - own - sys.stdlib_module_names == set()


def test_every_public_name_can_be_imported() -> None:
    assert {name for name in assay.__all__ if getattr(assay, name).__name__ != name} == set()
