import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def report():
    subprocess.run([sys.executable, "analysis.py"], check=True, timeout=100)
    return json.loads(Path("report.json").read_text())


def test_the_total_is_right(report):
    assert report["total"] == pytest.approx(859.0)


def test_regions_are_summed(report):
    assert report["by_region"] == {
        "North": pytest.approx(360.75),
        "South": pytest.approx(402.5),
        "East": pytest.approx(95.75),
    }


def test_the_best_month_is_found(report):
    assert report["best_month"] == "2024-02"


def test_the_chart_is_a_picture(report):
    assert Path("chart.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
