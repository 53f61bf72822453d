"""What a test needs from the machine: skip without it, or fail where it was promised.

The gate exports `ASSAY_TEST_REQUIRE`, a comma-separated list of what it has set up. A test that
cannot find one of those has found a broken gate, and says so instead of being skipped.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable

import pytest

VARIABLE = "ASSAY_TEST_REQUIRE"


def promised_components() -> frozenset[str]:
    """Return what this run of the tests was promised."""
    names = os.environ.get(VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def require(component: str, *, available: bool, why: str) -> None:
    """Go on if the component is there; otherwise end the test, and say why it is not there."""
    __tracebackhide__ = True  # a skip is reported where the test asked
    if available:
        return
    if component in promised_components():
        pytest.fail(f"{VARIABLE} promises {component!r}, but {why}", pytrace=False)
    pytest.skip(f"needs {component!r}: {why}")


def count_missing(reasons: Iterable[str]) -> str:
    """Count the skipped tests by the component that each of them needs, most missed first."""
    named = (re.search(r"needs '([^']+)': ", reason) for reason in reasons)
    counts = Counter(match[1] if match else "other reasons" for match in named)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{component} {count}" for component, count in ordered)
