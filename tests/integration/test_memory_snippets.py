"""Helpers that one run leaves behind and another makes use of, with real sandboxes in between."""

import re
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pytest

from assay.agent.context import RunDeps
from assay.agent.graph import run_graph
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.events import Planned, RunEvent
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.goal import MemoryUse, RunLimits, RunResult, RunSpec
from assay.contracts.lessons import Snippet
from assay.contracts.messages import Message, ModelInfo, Reply, Request, StopReason, Usage
from assay.contracts.ports import OnText, Sandbox, SandboxBackend, ignore_text
from assay.contracts.workspace import Tree, TreeFile
from assay.memory.database import MEMORY
from assay.memory.snippets import SnippetRecord, snippet_record_of
from assay.memory.sqlite_store import SqliteStore
from assay.memory.stored_memory import current_scope
from assay.runs.request import limits_of
from assay.settings.load import Settings
from assay.wiring import build_screen, open_backend, open_memory
from tests.doubles.memory_journal import MemoryJournal
from tests.support.undertakings import settings_in

SLUG = "def slug(title):\n    return '-'.join(title.lower().split())\n"
TEST_SLUG = (
    "from words import slug\n\n\n"
    "def test_one():\n    assert slug('A b') == 'a-b'\n\n\n"
    "def test_two():\n    assert slug('One Two  Three') == 'one-two-three'\n"
)
TEST_URL = (
    "from urls import slug, url\n\n\n"
    "def test_url():\n    assert url('New Shoes') == '/shop/new-shoes'\n\n\n"
    "def test_slug():\n    assert slug('X Y') == 'x-y'\n"
)
SANDBOXES_OF_A_RUN = 6
"""For one attempt that is accepted: the untouched files, to try it out, and four for the check."""
OFFERED = re.compile(r"# Code of earlier goals.*?```python\n(.*?)```", re.DOTALL)


@dataclass
class CopyingModel:
    """Writes what it is told to; where it is offered code of earlier goals, that comes first."""

    sources: tuple[str, ...]
    """One for each attempt."""
    replied: int = 0
    name: str = "scripted:copying"
    info: ModelInfo = field(
        default_factory=lambda: ModelInfo(
            context_tokens=32_000,
            max_output_tokens=4_000,
            tool_calls=False,
            price=None,
            local=True,
            small=True,
        )
    )

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del on_text
        offered = OFFERED.search("\n".join(message.text for message in request.messages))
        self.replied += 1
        source = f"{offered.group(1) if offered else ''}\n\n{self.sources[self.replied - 1]}"
        return Reply(
            message=Message(role="assistant", text=f"```python\n{source}```"),
            stop_reason=StopReason.ENDED,
            usage=Usage(calls=1),
            model=self.name,
        )


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where goals are carried out one after the other, with one memory."""

    folder: Path
    settings: Settings
    backend: SandboxBackend

    async def carry_out(
        self,
        statement: str,
        tests: str,
        model: CopyingModel,
        *,
        memory: MemoryUse = "all",
        backend: SandboxBackend | None = None,
    ) -> tuple[RunResult, Planned]:
        events: list[RunEvent] = []
        name = re.search(r"from (\w+) import", tests)
        assert name is not None
        path = PurePosixPath(f"test_{name.group(1)}.py")
        async with open_memory(memory, self.settings, on_notice=pytest.fail) as remembered:
            parts = RunDeps(
                run=f"run-{name.group(1)}",
                spec=RunSpec(
                    goal=statement,
                    protected=(path,),
                    limits=RunLimits(attempts=len(model.sources), check_timeout_s=60),
                ),
                pristine=Tree(files={path: TreeFile(tests.encode())}),
                model=model,
                backend=backend or self.backend,
                limits=limits_of(self.settings.agent),
                journal=MemoryJournal(listeners=(events.append,)),
                tools=(),
                screen=build_screen(self.settings.screening),
                screening="warn",
                memory=remembered,
                memory_use=memory,
            )
            result, _ = await run_graph(
                parts, self.folder / f"checkpoints-{name.group(1)}-{memory}"
            )
        (planned,) = (event for event in events if isinstance(event, Planned))
        return result, planned

    async def first_goal(self, *sources: str, memory: MemoryUse = "all") -> RunResult:
        statement = "Write words.py with slug(title), which turns a title into a slug"
        outcome, _ = await self.carry_out(
            statement, TEST_SLUG, CopyingModel(sources or (SLUG,)), memory=memory
        )
        return outcome

    async def second_goal(self, *, memory: MemoryUse = "all") -> tuple[RunResult, Planned]:
        """Have the model write half of what is asked for: the rest must come from memory."""
        statement = "Write urls.py with url(title) and slug(title), which turns a title into a slug"
        half = CopyingModel(("def url(title):\n    return f'/shop/{slug(title)}'\n",))
        return await self.carry_out(statement, TEST_URL, half, memory=memory)

    def shelf(self) -> tuple[SnippetRecord, ...]:
        store = SqliteStore(self.settings.state_dir / MEMORY, None)
        try:
            return store.snippets()
        finally:
            store.close()

    def put(self, **changes: str) -> None:
        """Put a helper on the shelf, as an earlier run would have, and time has changed it."""
        snippet = Snippet(
            names=("slug",),
            purpose="Write words.py with slug(title), which turns a title into a slug",
            path=PurePosixPath("words.py"),
            source=SLUG,
            test_path=PurePosixPath("test_words.py"),
            test=TEST_SLUG,
        )
        record = snippet_record_of(replace(snippet, **changes), current_scope(), time.time())
        assert record is not None
        store = SqliteStore(self.settings.state_dir / MEMORY, None)
        store.change_snippet(record.id, lambda _: record)
        store.close()


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncGenerator[Workshop]:
    settings = settings_in(tmp_path)
    async with open_backend(settings.sandbox) as backend:
        yield Workshop(folder=tmp_path, settings=settings, backend=backend)


@pytest.mark.slow
async def test_a_later_goal_makes_use_of_a_helper_that_was_tested_again(workshop: Workshop) -> None:
    assert (await workshop.first_goal()).accepted
    (kept,) = workshop.shelf()
    assert (kept.names, kept.grade, kept.passed) == (("slug",), "proven", 1)

    outcome, planned = await workshop.second_goal()

    assert planned.snippets == ("slug",)
    assert outcome.accepted
    used = next(record for record in workshop.shelf() if record.id == kept.id)
    # Passed before it was kept, before it was offered, and once more in what was accepted now.
    assert (used.used, used.passed, used.helped, used.harmed) == (1, 3, 1, 0)


async def test_a_helper_that_has_rotted_is_not_offered_and_retires(workshop: Workshop) -> None:
    workshop.put(source=SLUG.replace("title.lower()", "title.lowered()"))

    outcome, planned = await workshop.second_goal()

    assert planned.snippets == ()
    assert not outcome.accepted
    assert [record.retired for record in workshop.shelf()] == ["rotten"]


async def test_a_helper_whose_test_says_nothing_is_not_offered(workshop: Workshop) -> None:
    workshop.put(test="def test_it():\n    assert True\n")

    _, planned = await workshop.second_goal()

    assert planned.snippets == ()


async def test_what_the_screen_has_something_against_is_not_offered(
    workshop: Workshop,
) -> None:
    workshop.put(source="import subprocess\n" + SLUG)

    _, planned = await workshop.second_goal()

    assert planned.snippets == ()
    assert [record.retired for record in workshop.shelf()] == [""]


@pytest.mark.slow
async def test_nothing_is_kept_or_offered_where_memory_is_off(workshop: Workshop) -> None:
    assert (await workshop.first_goal(memory="off")).accepted
    assert not (workshop.settings.state_dir / MEMORY).exists()
    workshop.put()
    _, off = await workshop.second_goal(memory="off")
    _, at_the_action = await workshop.second_goal(memory="action")

    assert off.snippets == at_the_action.snippets == ()


@pytest.mark.slow
async def test_nothing_is_kept_of_a_run_in_which_a_proof_was_forged(workshop: Workshop) -> None:
    forged = "import os\n\nos._exit(0)\n\n\n" + SLUG

    outcome = await workshop.first_goal(forged, SLUG)

    assert outcome.accepted
    assert any(finding.severity == "forgery" for finding in outcome.findings)
    assert workshop.shelf() == ()


@dataclass
class Failing:
    """A backend that has as many sandboxes as the run itself needs, and none for its helpers."""

    inner: SandboxBackend
    name: str = "failing"
    opened: int = 0

    @property
    def isolation(self) -> Isolation:
        return self.inner.isolation

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        self.opened += 1
        if self.opened > SANDBOXES_OF_A_RUN:
            raise SandboxUnavailableError("no more of them", dispatch="never_started")
        return self.inner.open_sandbox(limits, equipment)


async def test_what_was_accepted_stays_so_when_its_helpers_cannot_be_tested(
    workshop: Workshop,
) -> None:
    failing = Failing(workshop.backend)

    outcome, _ = await workshop.carry_out(
        "Write words.py with slug(title)", TEST_SLUG, CopyingModel((SLUG,)), backend=failing
    )

    assert outcome.accepted
    assert failing.opened == SANDBOXES_OF_A_RUN + 1
    assert workshop.shelf() == ()
