import json
import time
from dataclasses import replace

import pytest

from assay.contracts.errors import UsageError
from assay.memory.import_export import export_lines, import_lines
from assay.memory.snippets import snippet_record_of
from assay.memory.types import Scope, record_of
from tests.conformance.memory.failures import CHART, DURATIONS, SNIPPET

RECORDS = [
    replace(record_of(DURATIONS, Scope(project="a"), 10.0), helped=3, seen=4, retired="stale"),
    record_of(CHART, Scope(), 20.0),
]


def lines_with(**changes: object) -> list[str]:
    header, first, *_ = export_lines(RECORDS)
    return [header, json.dumps({**json.loads(first), **changes})]


def test_what_was_exported_comes_back_the_same() -> None:
    assert list(import_lines(export_lines(RECORDS), shared=False)) == RECORDS


def test_imported_for_all_it_is_for_all() -> None:
    found = list(import_lines(export_lines(RECORDS), shared=True))

    assert all(record.shared for record in found)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{}"], "no export"),
        (["not json"], "line 1 is not JSON"),
        (["[]"], "not a JSON object"),
        (['{"format": "assay-memory", "version": 99}'], "version 99"),
        ([*export_lines([]), "{}"], "line 2"),
        (lines_with(seen="many"), "seen"),
        (lines_with(retired="never"), "retired"),
        (lines_with(lesson="x" * 200_000), "too long"),
    ],
)
def test_what_is_no_export_is_refused_with_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        list(import_lines(lines, shared=False))

    assert refused.value.hint


def test_an_import_is_cleaned_as_if_it_were_learnt_here() -> None:
    lines = lines_with(
        id="../../etc",
        lesson="use\nsk-" + "proj-abcDEF1234567890abcDEF \x1b[31m",
        helped=-5,
        seen=10**12,
        last_seen=time.time() + 10**9,
        goal="g" * 50_000,
    )

    (record,) = import_lines(lines, shared=False)

    assert record.id.isalnum()
    assert record.lesson == "use [redacted] [31m"
    assert record.helped == 0
    assert record.seen <= 10**9
    assert record.last_seen <= time.time()
    assert len(record.goal) <= 2000


def test_helpers_come_back_and_those_that_would_not_be_kept_do_not() -> None:
    kept = snippet_record_of(SNIPPET, Scope(project="a"), 10.0)
    assert kept is not None
    secret = replace(kept, source="api_key = 'abcdef123456'\n")

    assert list(import_lines(export_lines([kept]), shared=False)) == [kept]
    assert not list(import_lines(export_lines([secret]), shared=False))


def test_an_export_of_the_first_version_is_read() -> None:
    header, *lines = export_lines(RECORDS)
    old = [json.dumps({**json.loads(header), "version": 1}), *lines]

    assert list(import_lines(old, shared=False)) == RECORDS


@pytest.mark.parametrize("snippet", ["{}", "[]", '{"id": 3}', "null"])
def test_a_helper_that_is_none_is_refused_with_the_line(snippet: str) -> None:
    with pytest.raises(UsageError, match="line 2"):
        list(import_lines([*export_lines([]), f'{{"snippet": {snippet}}}'], shared=False))
