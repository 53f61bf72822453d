"""The dashboard and the alert rules name numbers that the service has."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from assay.contracts.conversation import Usage
from assay.contracts.dialogue import TurnEnded
from assay.entrypoints.http.guarding import Answered
from assay.entrypoints.http.metrics import Metrics
from tests.support.sources import ROOT

DEPLOY = ROOT / "deploy"
NUMBERS = re.compile(r"\bassay_\w+")


def known() -> set[str]:
    """Every name that `/metrics` can show."""
    found: set[str] = set()
    for family in Metrics().registry.collect():
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


@pytest.mark.parametrize("name", ["grafana/assay-serve.json", "alerts.yaml"])
def test_every_number_that_is_named_is_counted(name: str) -> None:
    named = {one for text in expressions(DEPLOY / name) for one in NUMBERS.findall(text)}
    assert named
    assert named <= known()


def test_every_number_that_is_counted_is_shown() -> None:
    shown = " ".join(expressions(DEPLOY / "grafana" / "assay-serve.json"))
    for family in Metrics().registry.collect():
        assert family.name in shown


def test_no_number_names_a_session() -> None:
    metrics = Metrics()
    ended = TurnEnded(turn=1, status="answered", text="calm-owl", usage=Usage(input_tokens=3))
    metrics.dialogue_event("calm-owl", ended)
    route = "/v1/sessions/{session_id}"
    metrics.answered(Answered(method="GET", route=route, status=200, duration_s=0.1))
    text = generate_latest(metrics.registry).decode()
    assert 'assay_turns_total{status="answered"} 1.0' in text
    assert 'assay_model_tokens_total{direction="input"} 3.0' in text
    assert "calm-owl" not in text
