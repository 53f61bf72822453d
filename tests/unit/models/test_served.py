"""Properties of models that servers report, each in the format of one server."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from assay.models.connection import Connection
from assay.models.served import ServedModel, add_details, list_models
from tests.support.chat_endpoint import serve_chat

OLLAMA: Mapping[str, Any] = {
    "/api/show": {
        "details": {"family": "qwen3", "parameter_size": "8.2B"},
        "model_info": {"general.parameter_count": 8_190_735_360, "qwen3.context_length": 40_960},
        "capabilities": ["completion", "tools", "thinking"],
        "parameters": 'stop    "<|im_end|>"\ntemperature   0.6',
    },
    "/api/ps": {"models": []},
}


@contextmanager
def served(documents: Mapping[str, Any], listing: object = None) -> Generator[Connection]:
    answered = {path: json.dumps(document).encode() for path, document in documents.items()}
    listed = None if listing is None else json.dumps({"data": [listing]}).encode()
    with serve_chat("m", listing=listed, documents=answered) as endpoint:
        yield Connection(base_url=endpoint.base_url)


async def details(server: str, documents: Mapping[str, Any], listing: object = None) -> ServedModel:
    with served(documents, listing) as connection:
        listed = await list_models(connection, timeout_s=20)
        assert listed
        return await add_details(server, connection, listed[0], timeout_s=20)


async def test_vllm_lists_the_context_and_the_model_behind_an_alias() -> None:
    entry = {"id": "coder", "root": "Qwen/Qwen3-Coder-480B-A35B-Instruct", "max_model_len": 100_000}

    assert await details("vllm", {}, entry) == ServedModel(
        name="coder", base_name="Qwen/Qwen3-Coder-480B-A35B-Instruct", context_tokens=100_000
    )


async def test_llamacpp_lists_the_parameters_and_its_properties_give_the_rest() -> None:
    entry = {"id": "mine.gguf", "meta": {"n_params": 7_615_616_512, "n_ctx_train": 131_072}}
    properties = {
        "default_generation_settings": {"n_ctx": 16_384},
        "chat_template_caps": {"supports_tools": True},
        "modalities": {"vision": False},
    }

    assert await details("llamacpp", {"/props": properties}, entry) == ServedModel(
        name="mine.gguf",
        context_tokens=16_384,
        parameters=7_615_616_512,
        tool_calls=True,
        sees_pictures=False,
    )


async def test_ollama_shows_parameters_context_and_capabilities() -> None:
    found = await details("ollama", OLLAMA)

    assert found == ServedModel(
        name="m",
        context_tokens=40_960,
        parameters=8_190_735_360,
        tool_calls=True,
        sees_pictures=False,
    )


@pytest.mark.parametrize("where", ["running", "parameters"])
async def test_ollama_runs_a_model_with_less_context_than_it_has(where: str) -> None:
    shown, running = dict(OLLAMA["/api/show"]), {"models": [{"name": "m", "context_length": 4096}]}
    if where == "parameters":
        shown["parameters"] += "\nnum_ctx   4096"
        running = {"models": [{"name": "another", "context_length": 8192}]}

    found = await details("ollama", {"/api/show": shown, "/api/ps": running})

    assert found.context_tokens == 4096


async def test_the_size_of_ollama_is_read_where_the_number_is_missing() -> None:
    shown = {"details": {"parameter_size": "494.03M"}}

    assert (await details("ollama", {"/api/show": shown})).parameters == 494_030_000


async def test_lmstudio_gives_context_kind_and_tools() -> None:
    shown = {
        "id": "m",
        "type": "vlm",
        "max_context_length": 131_072,
        "loaded_context_length": 8192,
        "capabilities": ["tool_use"],
    }

    assert await details("lmstudio", {"/api/v0/models/m": shown}) == ServedModel(
        name="m", context_tokens=8192, tool_calls=True, sees_pictures=True
    )


@pytest.mark.parametrize("server", ["ollama", "llamacpp", "lmstudio", "vllm"])
@pytest.mark.parametrize("answer", [None, [], "many", {"details": 3, "model_info": [], "type": 7}])
async def test_answers_in_another_format_are_ignored(server: str, answer: object) -> None:
    paths = ("/api/show", "/api/ps", "/props", "/api/v0/models/m")

    found = await details(server, {} if answer is None else dict.fromkeys(paths, answer))

    assert found == ServedModel(name="m")
