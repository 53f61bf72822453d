"""The files in `.github` are valid, and the workflows call only what this repository has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.sources import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")

MAKE = re.compile(r"\bmake +([a-z][\w-]*)")
TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
PATH = re.compile(r"\b(?:tests|src|docs|deploy|examples)(?:/[\w.-]+)*")
MAJOR_VERSION = re.compile(r"@(?:release/)?v\d+$")


def jobs(workflow: Path) -> dict[str, Any]:
    return yaml.safe_load(workflow.read_text())["jobs"]


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(workflow).values():
        yield from job["steps"]


def commands(workflow: Path) -> str:
    return "\n".join(step.get("run", "") for step in steps(workflow))


def by_name(path: Path) -> str:
    return path.name


def test_there_are_a_ci_and_a_release_workflow() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=by_name)
def test_yaml_files_parse(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=by_name)
def test_every_make_target_exists(workflow: Path) -> None:
    called = set(MAKE.findall(commands(workflow)))
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))

    assert called
    assert called - targets == set()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=by_name)
def test_every_path_exists(workflow: Path) -> None:
    named = PATH.findall(commands(workflow))

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=by_name)
def test_actions_are_pinned_by_major_version(workflow: Path) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]

    assert used
    assert [action for action in used if not MAJOR_VERSION.search(action)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=by_name)
def test_workflows_use_no_secrets_and_default_to_read_only(workflow: Path) -> None:
    assert "secrets." not in workflow.read_text()
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=by_name)
def test_every_job_has_a_time_limit(workflow: Path) -> None:
    assert [name for name, job in jobs(workflow).items() if "timeout-minutes" not in job] == []


def test_only_publishing_may_ask_for_an_identity() -> None:
    (release,) = (path for path in WORKFLOWS if path.stem == "release")
    granted = {name: job.get("permissions", {}) for name, job in jobs(release).items()}

    assert granted == {"build": {}, "publish": {"id-token": "write"}}
    assert jobs(release)["publish"]["needs"] == "build"


@pytest.mark.parametrize("form", FORMS, ids=by_name)
def test_issue_forms_have_what_github_requires(form: Path) -> None:
    content = yaml.safe_load(form.read_text())

    assert {"name", "description", "body"} <= content.keys()
    ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))


def test_code_owners_name_a_pattern_and_a_team() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]

    assert rules
    assert all(len(rule) > 1 and rule[1].startswith("@") for rule in rules)
