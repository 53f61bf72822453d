"""What is refused before any process is started."""

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from assay.contracts.errors import MissingExtraError, ModelRefusedError, UsageError
from assay.contracts.messages import Message, Request, ToolSpec
from assay.models.local.model import LocalModel, open_local_model

GREETING = (Message(role="user", text="hi"),)


def open_small(path: Path) -> AbstractAsyncContextManager[LocalModel]:
    return open_local_model(path, name="small", context_tokens=512)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF and so on")
    return path


async def test_a_missing_engine_says_what_to_install(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(MissingExtraError) as caught:
        async with open_small(model_file):
            pass

    assert caught.value.extra == "local"


async def test_a_missing_file_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the model") as caught:
        async with open_small(tmp_path / "gone.gguf"):
            pass

    assert "assay models pull" in caught.value.hint


async def test_a_file_of_another_kind_is_a_wrong_request(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")

    with pytest.raises(UsageError, match="is not a GGUF file"):
        async with open_small(path):
            pass


async def test_it_is_free_local_and_without_native_tool_calls(model_file: Path) -> None:
    async with open_small(model_file) as model:
        assert model.name == "local:small"
        assert model.engine_pid is None
        info = model.info

    assert info.price is not None
    assert (info.price.input_usd, info.price.output_usd) == (0.0, 0.0)
    assert info.local
    assert not info.tool_calls
    assert info.context_tokens == 512


async def test_tools_are_refused(model_file: Path) -> None:
    tool = ToolSpec(name="run", description="", parameters={})

    async with open_small(model_file) as model:
        with pytest.raises(ModelRefusedError, match="no native tool calls"):
            await model.reply(Request(messages=GREETING, tools=(tool,)))


async def test_an_error_of_the_caller_comes_out_as_it_is(model_file: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_small(model_file):
            raise KeyError("mine")
