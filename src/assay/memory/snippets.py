"""Snippets from accepted runs: their records, and the choice for a goal. Pure functions."""

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final, Literal

from assay.contracts.lessons import RecallQuery, Snippet
from assay.memory.embedding import similarity
from assay.memory.types import Scope, Tally, is_harmful
from assay.text.redaction import redact

MOST_SNIPPETS: Final = 500
"""The limit of stored snippets: every run compares all of them once."""
_OFFERED: Final = 2
_LEAST_LIKENESS: Final = 0.35
_MAX_CHARS: Final = 6_000
_MAX_TEST_CHARS: Final = 20_000
_MAX_PURPOSE: Final = 2_000
_MAX_NAME: Final = 100
_ID_CHARS: Final = 16

SnippetRetired = Literal["", "harmful", "rotten", "stale"]
"""Why a snippet is no longer offered. `rotten`: its test failed when it ran again."""


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class SnippetRecord(Tally):
    """One snippet with all its data; it was last seen when its test last passed."""

    id: str
    names: tuple[str, ...]
    purpose: str
    path: str
    source: str
    test_path: str
    test: str
    run: str = ""
    grade: str = ""
    passed: int = 1
    """How often its test has passed: at least once, before it was stored."""
    retired: SnippetRetired = ""

    @property
    def snippet(self) -> Snippet:
        return Snippet(
            id=self.id,
            names=self.names,
            purpose=self.purpose,
            path=PurePosixPath(self.path),
            source=self.source,
            test_path=PurePosixPath(self.test_path),
            test=self.test,
            run=self.run,
            grade=self.grade,
        )

    def visible_in(self, scope: Scope) -> bool:
        """Return whether a run in this scope may see it."""
        here = self.shared or self.project == scope.project
        same = not scope.environment or self.environment in {"", scope.environment}
        return here and same and not self.retired


def snippet_record_of(snippet: Snippet, scope: Scope, now: float) -> SnippetRecord | None:
    """Build the record of a snippet; None if it must not be stored.

    A snippet with a secret is not stored: removing the secret would change the code.
    """
    paths = (snippet.path, snippet.test_path)
    texts = (snippet.source, snippet.test, " ".join(snippet.names), *map(str, paths))
    if any(redact(text) != text for text in texts) or not snippet.names:
        return None
    if len(snippet.source) > _MAX_CHARS or len(snippet.test) > _MAX_TEST_CHARS:
        return None
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        return None
    try:
        identity = f"{scope.project}\0{snippet.source}".encode()
        " ".join(texts).encode()
    except UnicodeEncodeError:
        return None
    return SnippetRecord(
        id=hashlib.sha256(identity).hexdigest()[:_ID_CHARS],
        names=tuple(name[:_MAX_NAME] for name in snippet.names),
        purpose=redact(snippet.purpose.strip()[: 4 * _MAX_PURPOSE])[:_MAX_PURPOSE],
        path=str(snippet.path),
        source=snippet.source,
        test_path=str(snippet.test_path),
        test=snippet.test,
        run=snippet.run[:_MAX_NAME],
        grade=snippet.grade[:_MAX_NAME],
        environment=scope.environment,
        project=scope.project,
        shared=not scope.project,
        first_seen=now,
        last_seen=now,
    )


def kept_again(known: SnippetRecord, new: SnippetRecord) -> SnippetRecord:
    """Merge a snippet that another run has proven again; it is valid again."""
    # The first test belongs to the stored purpose; only a failing one is replaced.
    tested = new if known.retired == "rotten" else known
    return replace(
        known,
        path=tested.path,
        test_path=tested.test_path,
        test=tested.test,
        run=new.run,
        grade=new.grade,
        environment=new.environment,
        shared=known.shared or new.shared,
        passed=known.passed + 1,
        last_seen=new.last_seen,
        retired=known.retired if known.retired == "harmful" else "",
    )


def retested(known: SnippetRecord, *, passed: bool, now: float) -> SnippetRecord:
    """Return a snippet after its test ran again; a failed one is retired."""
    if passed:
        return replace(known, passed=known.passed + 1, used=known.used + 1, last_seen=now)
    return retired(known, "rotten")


def retired(known: SnippetRecord, why: SnippetRetired) -> SnippetRecord:
    """Return a retired snippet; a new proof makes it valid again."""
    return replace(known, retired=why)


def judged_snippet(known: SnippetRecord, *, helped: bool) -> SnippetRecord:
    """Return a snippet with one more judgement; a harmful one is retired."""
    record = replace(known, helped=known.helped + helped, harmed=known.harmed + (not helped))
    return retired(record, "harmful") if is_harmful(record.helped, record.harmed) else record


def choose_snippets(
    query: RecallQuery, known: Iterable[SnippetRecord]
) -> tuple[SnippetRecord, ...]:
    """Return the snippets to offer: similar in goal or signature; the proven ones first."""
    looked_for = f"{query.goal} {query.text}"
    ranked: list[tuple[float, SnippetRecord]] = []
    for record in known:
        found = similarity(looked_for, text_of(record))
        if found >= _LEAST_LIKENESS:
            ranked.append((found * (1 + record.worth), record))
    ranked.sort(key=lambda pair: (-pair[0], -pair[1].last_seen, pair[1].id))
    chosen: dict[tuple[str, ...], SnippetRecord] = {}
    for _, record in ranked:
        if len(chosen) < _OFFERED:
            chosen.setdefault(record.names, record)
    return tuple(chosen.values())


def text_of(record: SnippetRecord) -> str:
    """Return the search text of a snippet: its goal and its signatures."""
    return f"{record.purpose} {' '.join(signatures_of(record))}"


def signatures_of(record: SnippetRecord) -> tuple[str, ...]:
    """Return the signatures of its public functions and classes."""
    try:
        module = ast.parse(record.source)
    except (SyntaxError, ValueError, RecursionError):
        return record.names
    found = {node.name: node for node in module.body if isinstance(node, _Definition)}
    return tuple(_signature(found[name]) if name in found else name for name in record.names)


def _signature(node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"
