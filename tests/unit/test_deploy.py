"""The dashboard and the alert rules name numbers that the service has."""

import ast
import json
import re
import shutil
import subprocess  # noqa: TID251 - promtool is no program of ours
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from assay.contracts.chat import TurnEnded
from assay.contracts.messages import Usage
from assay.executor.observer import Observer as ExecutorObserver
from assay.server.api.middleware import RequestCompleted
from assay.server.api.monitoring import Metrics
from tests.support.requirements import require
from tests.support.sources import ROOT

DEPLOY = ROOT / "deploy"
NUMBERS = re.compile(r"\bassay_\w+")


def known(registry: CollectorRegistry) -> set[str]:
    """Every name that `/metrics` can show."""
    found: set[str] = set()
    for family in registry.collect():
        suffixes = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_count", "_sum"),
            "gauge": ("",),
        }
        found |= {family.name + suffix for suffix in suffixes[family.type]}
    return found


def expressions(path: Path) -> list[str]:
    if path.suffix == ".json":
        panels = json.loads(path.read_text())["panels"]
        return [target["expr"] for panel in panels for target in panel["targets"]]
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("grafana/assay-serve.json", Metrics().registry),
        ("alerts.yaml", Metrics().registry),
        ("grafana/assay-executor.json", ExecutorObserver(lambda _: None).registry),
        ("executor-alerts.yaml", ExecutorObserver(lambda _: None).registry),
    ],
)
def test_every_number_that_is_named_is_counted(name: str, registry: CollectorRegistry) -> None:
    named = {one for text in expressions(DEPLOY / name) for one in NUMBERS.findall(text)}
    assert named
    assert named <= known(registry)


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("assay-serve.json", Metrics().registry),
        ("assay-executor.json", ExecutorObserver(lambda _: None).registry),
    ],
)
def test_every_number_that_is_counted_is_shown(name: str, registry: CollectorRegistry) -> None:
    shown = " ".join(expressions(DEPLOY / "grafana" / name))
    for family in registry.collect():
        assert family.name in shown


@pytest.mark.parametrize("name", ["alerts.yaml", "executor-alerts.yaml"])
def test_prometheus_understands_the_rules(name: str) -> None:
    tool = shutil.which("promtool")
    require("promtool", available=tool is not None, why="promtool is not installed")
    assert tool is not None
    done = subprocess.run(
        [tool, "check", "rules", str(DEPLOY / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_number_names_a_session() -> None:
    metrics = Metrics()
    ended = TurnEnded(turn=1, status="answered", text="calm-owl", usage=Usage(input_tokens=3))
    metrics.on_event("calm-owl", ended)
    route = "/v1/sessions/{session_id}"
    metrics.note_request(RequestCompleted(method="GET", route=route, status=200, duration_s=0.1))
    text = generate_latest(metrics.registry).decode()
    assert 'assay_turns_total{status="answered"} 1.0' in text
    assert 'assay_model_tokens_total{direction="input"} 3.0' in text
    assert "calm-owl" not in text


def test_the_image_of_the_executor_keeps_what_its_settings_import() -> None:
    recipe = (DEPLOY / "executor.Dockerfile").read_text()
    package = ROOT / "src" / "assay"
    kept = [line for line in recipe.splitlines() if "! -name" in line]
    parts = ("auth", "executor", "sandbox", "settings")
    source = "".join(path.read_text() for part in parts for path in (package / part).rglob("*.py"))
    imported = set(re.findall(r"from assay\.(\w+)[\w.]* import", source))

    assert imported
    for name in imported:
        names = (f"! -name {name} ", f"! -name {name}.py ")
        assert any(one in f"{line} " for line in kept for one in names), name


def imported_by(module: str) -> set[str]:
    """Return the modules of the package that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = ROOT / "src" / Path(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        # The names of the package itself are imported when they are used; no executor uses them.
        if name in found or name == "assay" or not path.is_file():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("assay"):
                waiting += [str(node.module), *(f"{node.module}.{one.name}" for one in node.names)]
    return found


def test_the_image_of_the_executor_keeps_all_modules_that_it_imports() -> None:
    instruction = (DEPLOY / "executor.Dockerfile").read_text()
    kept = {name.removesuffix(".py") for name in re.findall(r"! -name ([\w.]+)", instruction)}

    needed = {tuple(name.split(".")) for name in imported_by("assay.cli.executor")}

    assert {parts[1] for parts in needed} <= kept
    assert {parts[2] for parts in needed if parts[1] == "cli" and len(parts) > 2} <= kept
