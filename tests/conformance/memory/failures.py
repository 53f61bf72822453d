"""Failures and a helper to remember, as they come out of real runs."""

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.lessons import Failure, RecallPoint, RecallQuery, Snippet

DURATIONS: Final = Failure(
    goal="Write durations.py with parse_duration(text) that turns '1h30m' into seconds",
    signature="NameError: name 're' is not defined (in durations.py: parse_duration)",
    message="NameError: name 're' is not defined",
    action=(
        "def parse_duration(text):\n"
        "    hours, minutes = re.fullmatch(r'(\\d+)h(\\d+)m', text).groups()\n"
        "    return int(hours) * 3600 + int(minutes) * 60\n"
    ),
    language="py",
    fix=(
        "--- a/durations.py\n+++ b/durations.py\n@@ -1,3 +1,5 @@\n"
        "+import re\n+\n def parse_duration(text):\n"
    ),
    run="run-1",
)
"""Something that is about more than its own test, with a fix."""

CHART: Final = Failure(
    goal="Read sales.csv with pandas and draw the revenue of each month as a bar chart",
    signature="KeyError: 'Month' (in analysis.py: monthly_revenue)",
    message="KeyError: 'Month'",
    action=(
        "import pandas as pd\n\n\ndef monthly_revenue(path):\n"
        "    frame = pd.read_csv(path)\n    return frame.groupby('Month')['revenue'].sum()\n"
    ),
    language="py",
    fix=(
        "--- a/analysis.py\n+++ b/analysis.py\n@@ -4,3 +4,3 @@\n"
        "     frame = pd.read_csv(path)\n-    return frame.groupby('Month')['revenue'].sum()\n"
        "+    return frame.groupby('month')['revenue'].sum()\n"
    ),
    run="run-2",
)

UNSOLVED: Final = replace(DURATIONS, fix="", lesson="", run="run-0")
"""The same as the first, before anybody knew what to do about it."""

SNIPPET: Final = Snippet(
    names=("slug",),
    purpose="Write words.py with slug(title): a title as it is used in an address",
    path=PurePosixPath("words.py"),
    source="def slug(title: str) -> str:\n    return '-'.join(title.lower().split())\n",
    test_path=PurePosixPath("test_words.py"),
    test="from words import slug\n\n\ndef test_it():\n    assert slug('A b') == 'a-b'\n",
    run="run-3",
    grade="proven",
)
"""Something that another goal can use."""


def query_for(failure: Failure, moment: RecallPoint) -> RecallQuery:
    """Build what a run would ask at this moment, were it about to fail, or had it failed, so."""
    match moment:
        case "plan":
            return RecallQuery(moment=moment, goal=failure.goal)
        case "action":
            return RecallQuery(moment=moment, goal=failure.goal, text=failure.action)
        case "failure":
            return RecallQuery(moment=moment, goal=failure.goal, signature=failure.signature)
