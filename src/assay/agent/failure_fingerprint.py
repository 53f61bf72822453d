"""Fingerprints of failures: the kind of error, its message, and its origin.

Numbers, addresses, quoted values and line numbers differ from run to run, so they are removed.
Quoted names stay in errors that are about names.
"""

import re
from typing import Final

from assay.contracts.verdict import CheckReport, TestResult, TestStatus
from assay.text.truncate import normalise_addresses, normalise_temporary_paths, strip_control_codes

FAILING: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})
_MAX_CHARS: Final = 240
_KIND: Final = re.compile(
    r"^(?:E\s+)?(?P<kind>(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Failure))"
    r"(?:\s\[\w+\])?(?::|$)",
    re.MULTILINE,
)
_ABOUT_NAMES: Final = frozenset(
    {
        "AttributeError", "ImportError", "KeyError", "ModuleNotFoundError", "NameError",
        "ReferenceError", "TypeError", "UnboundLocalError",
    }
)  # fmt: skip
_QUOTED: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![A-Za-z_])")
_SPACE: Final = re.compile(r"\s+")
_FRAMES: Final = (
    re.compile(r"^\s*File \"(?P<file>[^\"\n]+)\", line \d+, in (?P<name>\S+)", re.MULTILINE),
    re.compile(r"^(?P<file>[^\s:\"'()]+\.py):\d+: ", re.MULTILINE),
    re.compile(
        r"^\s+at (?P<name>[^\n(]*?) ?\(?(?:file://)?(?P<file>/[^\n():]+):\d+:\d+\)?$", re.MULTILINE
    ),
    re.compile(r"panicked at (?:'[^\n]*', )?(?P<file>[^\s:']+\.rs):\d+"),
    re.compile(r"(?P<file>[^\s:()]+\.(?:go|cpp|cc|cxx|c|h|hpp|rs|js|ts|java)):\d+"),
)
_NOT_THEIRS: Final = re.compile(
    r"site-packages|node_modules|node:internal|<frozen|/lib/python3|/opt/assay|/rustc/|/usr/"
)
_INNERMOST_LAST: Final = 2
"""How many of the patterns above belong to Python, which prints the innermost frame last."""


def signature_of(test: TestResult) -> str:
    """Return the fingerprint of this failure, in one line."""
    text = strip_control_codes(f"{test.message}\n{test.detail}")
    kind = _kind_of(text)
    message = test.message or next((line for line in test.detail.splitlines() if line.strip()), "")
    said = normalise(
        strip_control_codes(message), keep_quoted=kind.rpartition(".")[2] in _ABOUT_NAMES
    )
    said = said.removeprefix(f"{kind}: ").removeprefix("E ")
    where = _where(text)
    whole = f"{kind or test.status}: {said}" + (f" (in {where})" if where else "")
    return whole[:_MAX_CHARS]


def signatures(reports: tuple[CheckReport, ...]) -> frozenset[str]:
    """Return the fingerprints of all failures; for a check without tests, of its ending."""
    found: set[str] = set()
    for report in reports:
        failing = [test for test in report.tests if test.status in FAILING]
        found.update(signature_of(test) for test in failing)
        if not report.passed and not failing:
            found.add(_signature_of_ending(report))
    return frozenset(found)


def normalise(text: str, *, keep_quoted: bool = False) -> str:
    """Return a message without the parts that differ between occurrences."""
    text = normalise_temporary_paths(normalise_addresses(text))
    if not keep_quoted:
        text = _QUOTED.sub("'…'", text)
    return _SPACE.sub(" ", _NUMBER.sub("N", text)).strip()


def _kind_of(text: str) -> str:
    match = _KIND.search(text)
    return match["kind"] if match else ""


def _where(text: str) -> str:
    for number, pattern in enumerate(_FRAMES):
        frames = [
            match for match in pattern.finditer(text) if not _NOT_THEIRS.search(match["file"])
        ]
        if not frames:
            continue
        frame = frames[-1] if number < _INNERMOST_LAST else frames[0]
        file = frame["file"].removeprefix("/app/")
        name = frame.groupdict().get("name")
        return f"{file}: {name}" if name else file
    return ""


def _signature_of_ending(report: CheckReport) -> str:
    text = strip_control_codes(report.output)
    kind = _kind_of(text)
    lines = [line for line in text.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if kind and kind in line), lines[-1] if lines else ""
    )
    said = normalise(last, keep_quoted=kind.rpartition(".")[2] in _ABOUT_NAMES)
    return f"{report.runner}: {normalise(report.explanation)}: {said}"[:_MAX_CHARS]
