import hashlib
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from assay import wiring
from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    MissingExtraError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import Message, Price, Request, ToolSpec
from assay.contracts.ports import Model
from assay.models import catalogue
from assay.models.local.download import WeightsStore
from assay.models.local.weights import FileSource, Weights, known_weights
from assay.models.open import OpenOptions, build_meter, open_model, pull
from assay.models.resolve import (
    Availability,
    choose,
    known_providers,
    list_available,
    weights_store,
)
from assay.settings.load import KEY_VARIABLES, BudgetSettings, ModelSettings
from tests.support.chat_endpoint import ChatEndpoint, serve_chat
from tests.support.file_server import serve_file
from tests.support.sources import ROOT

ASKED = Request(
    messages=(Message(role="user", text="Are you ready?"),), max_output_tokens=50, temperature=0.0
)
SECRET = "sk-secret-0123456789"  # noqa: S105 - opens nothing
PAGE = ROOT / "docs" / "reference" / "models.md"
SERVERS = ("ollama", "lmstudio", "llamacpp", "vllm")
TIMEOUT_S = 20.0
"""Much, so that a busy machine does not look like one where nothing answers."""


@pytest.fixture(scope="module")
def nowhere() -> str:
    """An address where nothing listens, because whoever did has gone."""
    with serve_chat() as endpoint:
        return endpoint.base_url


@pytest.fixture
def settings(tmp_path: Path, nowhere: str) -> ModelSettings:
    """Those of a machine without keys, servers or weights."""
    return ModelSettings(cache_dir=tmp_path / "cache", base_urls=dict.fromkeys(SERVERS, nowhere))


def having(settings: ModelSettings, **more: Any) -> ModelSettings:
    urls = {**settings.base_urls, **more.pop("base_urls", {})}
    return ModelSettings.model_validate({**dict(settings), **more, "base_urls": urls})


def with_key(settings: ModelSettings, endpoint: ChatEndpoint, **more: Any) -> ModelSettings:
    return having(
        settings,
        api_keys={"OPENAI_API_KEY": SecretStr(SECRET)},
        base_urls={"openai": endpoint.base_url},
        **more,
    )


@pytest.fixture
def endpoint() -> Generator[ChatEndpoint]:
    with serve_chat("first", "second") as served:
        yield served


@contextmanager
def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> Generator[None]:
    """As if something were not installed."""
    with monkeypatch.context() as patch:
        for name in modules:
            patch.setitem(sys.modules, name, None)
        yield


def script(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def by_name(found: tuple[Availability, ...]) -> dict[str, Availability]:
    return {one.name.partition(":")[0] if one.title[0] != "e" else one.name: one for one in found}


async def test_a_provider_is_asked_with_its_key(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    async with open_model("openai:gpt-6.1-sol", with_key(settings, endpoint)) as model:
        reply = await model.reply(ASKED)

    assert (model.name, reply.message.text) == ("openai:gpt-6.1-sol", "ready")
    assert endpoint.asked[0]["model"] == "gpt-6.1-sol"
    assert endpoint.keys == [SECRET]


async def test_a_provider_without_a_model_means_its_default(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    async with open_model("openai", with_key(settings, endpoint)) as model:
        assert model.name == f"openai:{catalogue.provider('openai').default_model}"


async def test_a_server_without_a_model_means_the_first_it_has(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    chosen = having(settings, base_urls={"ollama": endpoint.base_url})

    async with open_model("ollama", chosen) as model:
        assert model.name == "ollama:first"
        assert model.info.local


@pytest.mark.parametrize("listing", [b"<html>hello</html>", b"[]", b'{"data": 3}'])
async def test_a_server_that_is_something_else_is_not_taken_for_a_model(
    settings: ModelSettings, listing: bytes
) -> None:
    with serve_chat(listing=listing) as other:
        chosen = having(settings, base_urls={"vllm": other.base_url})

        with pytest.raises(ModelUnavailableError, match="vLLM does not answer"):
            async with open_model("vllm", chosen):
                pass


@pytest.mark.parametrize(
    "told",
    [{"max_model_len": 6000}, {"meta": {"n_ctx": 6000, "n_ctx_train": 32768}}],
    ids=["vllm", "llama.cpp"],
)
@pytest.mark.parametrize("name", ["vllm", "vllm:qwen3-8b", "custom:qwen3-8b"])
async def test_the_context_is_the_one_that_a_server_gives_its_model(
    settings: ModelSettings, told: dict[str, Any], name: str
) -> None:
    listing = json.dumps({"data": [{"id": "qwen3-8b", **told}]}).encode()
    with serve_chat(listing=listing) as served:
        urls = {"vllm": served.base_url}
        chosen = having(settings, base_url=served.base_url, base_urls=urls)
        async with open_model(name, chosen) as model:
            info = model.info

    assert info.context_tokens == 6000
    assert info.max_output_tokens <= 6000


@pytest.mark.parametrize("told", [{"max_model_len": "many"}, {"meta": [1]}, {"meta": {"n_ctx": 0}}])
async def test_a_size_that_makes_no_sense_is_passed_over(
    settings: ModelSettings, told: dict[str, Any]
) -> None:
    listing = json.dumps({"data": [{"id": "qwen3-8b", **told}]}).encode()
    with serve_chat(listing=listing) as served:
        async with open_model("vllm", having(settings, base_urls={"vllm": served.base_url})) as m:
            assert m.info.context_tokens == 131_072


async def test_a_model_that_a_server_does_not_list_is_asked_all_the_same(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    chosen = having(settings, base_urls={"ollama": endpoint.base_url})

    async with open_model("ollama:qwen3:8b", chosen) as model:
        await model.reply(ASKED)

    assert endpoint.asked[0]["model"] == "qwen3:8b"
    assert model.info.context_tokens == 131_072


async def test_a_large_model_of_a_server_is_asked_with_tools_and_its_own_length(
    settings: ModelSettings,
) -> None:
    entry = {"id": "qwen3-coder-480b", "max_model_len": 262_144}
    with serve_chat(listing=json.dumps({"data": [entry]}).encode()) as served:
        chosen = having(settings, base_urls={"vllm": served.base_url})
        look = ToolSpec(name="look", description="Look.", parameters={"type": "object"})

        async with open_model("vllm:qwen3-coder-480b", chosen) as model:
            await model.reply(replace(ASKED, tools=(look,), max_output_tokens=None))

    assert (model.info.small, model.info.tool_calls) == (False, True)
    assert served.asked[0]["tools"][0]["function"]["name"] == "look"
    assert served.asked[0]["max_tokens"] == model.info.output_limit(
        replace(ASKED, max_output_tokens=None)
    )


async def test_a_model_of_unknown_size_is_usable_and_one_line_names_the_setting(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    notices: list[str] = []
    opening = OpenOptions(on_notice=notices.append)

    async with open_model("custom", having(settings, base_url=endpoint.base_url), opening) as model:
        await model.reply(ASKED)

    assert (model.info.context_tokens, model.info.max_output_tokens) == (32_768, 8_192)
    assert (model.info.small, model.info.tool_calls) == (False, True)
    (notice,) = notices
    assert notice.startswith(
        "the size of custom:first is not known: Assay assumes a context of 32768"
    )
    assert notice.endswith('set context_tokens under [models."custom:first"]')


async def test_the_settings_of_a_model_apply_and_no_line_is_shown(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    notices: list[str] = []
    own = {"context_tokens": 200_000, "max_output_tokens": 50_000, "reasoning_effort": "low"}
    chosen = having(settings, base_url=endpoint.base_url, named={"custom:first": own})

    async with open_model("custom", chosen, OpenOptions(on_notice=notices.append)) as model:
        await model.reply(ASKED)

    assert (model.info.context_tokens, model.info.max_output_tokens) == (200_000, 50_000)
    assert endpoint.asked[0]["reasoning_effort"] == "low"
    assert notices == []


async def test_a_server_that_has_no_model_says_so(settings: ModelSettings) -> None:
    with serve_chat("nomic-embed-text") as empty:
        chosen = having(settings, base_urls={"ollama": empty.base_url})

        with pytest.raises(UsageError, match="Ollama has no model"):
            async with open_model("ollama", chosen):
                pass


async def test_an_endpoint_of_ones_own_needs_no_key(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    chosen = having(settings, base_url=endpoint.base_url)

    async with open_model("custom", chosen) as first, open_model("custom:big", chosen) as named:
        await named.reply(ASKED)

    assert (first.name, named.name) == ("custom:first", "custom:big")
    assert endpoint.asked[0]["model"] == "big"
    assert named.info.price is None


async def test_an_endpoint_of_ones_own_gets_its_own_key_and_no_other(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    keys = {"ASSAY_API_KEY": SecretStr("mine"), "OPENAI_API_KEY": SecretStr(SECRET)}
    chosen = having(settings, base_url=endpoint.base_url, api_keys=keys)

    async with open_model("custom", chosen) as model:
        await model.reply(ASKED)

    assert set(endpoint.keys) == {"mine"}


async def test_failures_are_retried_and_each_attempt_is_metered(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    endpoint.statuses = [429, 503]
    chosen = with_key(settings, endpoint)
    meter = build_meter(chosen.budget)

    async with open_model("openai:gpt-6.1-sol", chosen, OpenOptions(meter=meter)) as model:
        await model.reply(ASKED)

    assert meter.spent.calls == len(endpoint.asked) == 3
    assert (meter.spent.input_tokens, meter.spent.output_tokens) == (20, 2)
    assert meter.spent.cost_usd


async def test_the_budget_of_the_settings_holds(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    endpoint.statuses = [429] * 9
    chosen = with_key(settings, endpoint, budget={"calls": 2})

    async with open_model("openai:gpt-6.1-sol", chosen) as model:
        with pytest.raises(BudgetExceededError, match="all 2 calls"):
            await model.reply(ASKED)

    assert len(endpoint.asked) == 2


async def test_a_cent_is_not_passed_by_twenty_requests_at_once_to_a_server_that_fails_often(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    endpoint.statuses = [429, 500, 503] * 5
    price = {"input_usd": 20.0, "output_usd": 20.0}
    chosen = with_key(
        settings, endpoint, budget={"usd": 0.01}, named={"openai:m": {"price": price}}
    )
    meter = build_meter(chosen.budget)
    outcomes: list[str] = []

    async def ask(model: Model) -> None:
        try:
            outcomes.append((await model.reply(ASKED)).message.text)
        except (BudgetExceededError, ModelUnavailableError) as error:
            outcomes.append(type(error).__name__)

    async with open_model("openai:m", chosen, OpenOptions(meter=meter)) as model:
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(ask, model)

    charged = outcomes.count("ready") * (20 + 2) * 20.0 / 10**6
    assert outcomes.count("ready") >= 3
    assert "BudgetExceededError" in outcomes
    assert charged <= (meter.spent.cost_usd or 0.0) <= 0.01
    assert meter.spent.calls == len(endpoint.asked)


async def test_a_cap_in_dollars_needs_a_price_which_the_settings_can_give(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    capped = having(settings, base_url=endpoint.base_url, budget={"usd": 1.0})
    named = {"custom:first": {"price": {"input_usd": 1.0, "output_usd": 2.0}}}
    async with open_model("custom", capped) as model:
        with pytest.raises(BudgetExceededError, match="no price is known for 'custom:first'"):
            await model.reply(ASKED)

    async with open_model("custom", having(capped, named=named)) as model:
        reply = await model.reply(ASKED)

    assert model.info.price == Price(input_usd=1.0, output_usd=2.0)
    assert reply.usage.cost_usd == pytest.approx(0.000024)


async def test_a_key_shows_neither_in_failures_nor_in_recordings(
    settings: ModelSettings, endpoint: ChatEndpoint, tmp_path: Path
) -> None:
    endpoint.statuses = [401]
    chosen = with_key(settings, endpoint)
    opening = OpenOptions(record_to=tmp_path / "run")

    async with open_model("openai:gpt-6.1-sol", chosen, opening) as model:
        with pytest.raises(ModelRefusedError) as caught:
            await model.reply(ASKED)
        await model.reply(ASKED)

    recorded = (tmp_path / "run" / "recording.jsonl").read_text()
    for shown in (str(caught.value), repr(caught.value), caught.value.hint, recorded, repr(model)):
        assert SECRET not in shown
    assert "OPENAI_API_KEY" in caught.value.hint


async def test_a_run_is_recorded_and_played_back(settings: ModelSettings, tmp_path: Path) -> None:
    name = script(
        tmp_path,
        {"text": "one"},
        {"error": "unavailable", "retry_after_s": 0},
        {"text": "two"},
        {"error": "refused", "message": "no more"},
    )

    async def play(name: str, opening: OpenOptions | None = None) -> list[str]:
        said: list[str] = []
        async with open_model(name, settings, opening) as model:
            for _ in range(3):
                try:
                    said.append((await model.reply(ASKED)).message.text)
                except ModelRefusedError as error:
                    said.append(str(error))
        return said

    recorded = await play(name, OpenOptions(record_to=tmp_path / "run"))

    assert recorded == ["one", "two", "no more"]
    assert await play(f"replay:{tmp_path / 'run'}") == recorded
    assert await play(f"replay-lenient:{tmp_path / 'run'}") == recorded


async def test_a_replay_is_metered_like_the_run_it_repeats(
    settings: ModelSettings, tmp_path: Path
) -> None:
    usage = {"input_tokens": 7, "output_tokens": 3, "cost_usd": 0.5}
    name = script(tmp_path, {"text": "one", "usage": usage})
    async with open_model(name, settings, OpenOptions(record_to=tmp_path / "run")) as model:
        await model.reply(ASKED)
    meter = build_meter(settings.budget)

    async with open_model(
        f"replay:{tmp_path / 'run'}", settings, OpenOptions(meter=meter)
    ) as model:
        await model.reply(ASKED)

    assert (meter.spent.input_tokens, meter.spent.cost_usd) == (7, 0.5)


async def test_a_run_under_a_small_cap_is_played_back_under_the_same_cap(
    settings: ModelSettings, tmp_path: Path
) -> None:
    """The cap shortens what is asked for, and a replay is found by what was asked for before."""
    capped = having(settings, budget={"tokens": 3000})
    request = replace(ASKED, max_output_tokens=None)
    name = script(tmp_path, {"text": "one"})
    async with open_model(name, capped, OpenOptions(record_to=tmp_path / "run")) as model:
        await model.reply(request)

    async with open_model(f"replay:{tmp_path / 'run'}", capped) as model:
        reply = await model.reply(request)

    assert reply.message.text == "one"


async def test_a_model_without_native_calls_is_led_to_make_them_in_words(
    settings: ModelSettings, tmp_path: Path
) -> None:
    look = ToolSpec(name="look", description="Look.", parameters={"type": "object"})
    request = replace(ASKED, tools=(look,))
    written = 'Well.\n```call\n{"tool": "look", "arguments": {"at": 1}}\n```'
    name = script(tmp_path, {"facts": {"tool_calls": False}}, {"text": written})
    heard: list[str] = []

    async with open_model(name, settings, OpenOptions(record_to=tmp_path / "run")) as model:
        reply = await model.reply(request, on_text=heard.append)
    async with open_model(f"replay:{tmp_path / 'run'}", settings) as model:
        replayed = await model.reply(request)

    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == ("look", {"at": 1})
    assert "".join(heard) == reply.message.text == "Well.\n"
    assert replayed.message == reply.message


async def test_the_composition_root_opens_the_model_of_the_settings(
    settings: ModelSettings, tmp_path: Path
) -> None:
    chosen = having(settings, default=script(tmp_path, {"text": "one"}))

    async with wiring.open_model(settings=chosen) as model:
        by_default = await model.reply(ASKED)
    opening = OpenOptions(meter=build_meter(BudgetSettings(tokens=10)))
    async with wiring.open_model(chosen.default, settings=chosen, opening=opening) as model:
        with pytest.raises(BudgetExceededError):
            await model.reply(ASKED)

    assert by_default.message.text == "one"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opnai:gpt-5", "did you mean `openai:gpt-5`?"),
        ("Anthropic:x", "did you mean `anthropic:x`?"),
        ("olama", "did you mean `ollama`?"),
        ("scriptd:a.jsonl", "did you mean `scripted:a.jsonl`?"),
        ("gpt-5", "did you mean `openai:gpt-5`?"),
        ("claude-sonnet-5-5", "did you mean `anthropic:claude-sonnet-5-5`?"),
        ("gemini-2.5-pro", "did you mean `gemini:gemini-2.5-pro`?"),
        ("mistral", "providers are openai, openrouter, gemini, anthropic"),
        ("", "providers are "),
        ("auto:x", "did you mean"),
        ("local:qwen2.5-coder-1.5", "did you mean `local:qwen2.5-coder-1.5b`?"),
        ("local:llama", "choose one of `local:qwen2.5-coder-1.5b`, "),
        ("scripted:", "write `scripted:PATH`"),
        ("replay", "write `replay:PATH`"),
        ("custom:big", "set ASSAY_BASE_URL"),
        ("openai:gpt-5", "set OPENAI_API_KEY, or write it into"),
    ],
)
async def test_a_name_that_stands_for_nothing_here_comes_with_a_hint(
    settings: ModelSettings, name: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        async with open_model(name, settings):
            pass

    assert hint in caught.value.hint


async def test_an_address_for_an_unknown_provider_is_refused(settings: ModelSettings) -> None:
    with pytest.raises(UsageError, match=r"base_urls: there is no provider 'acme'"):
        known_providers(having(settings, base_urls={"acme": "http://127.0.0.1:1/v1"}))


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (KEY_VARIABLES, "openai"),
        (("ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"), "openrouter"),
        (("ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "gemini"),
        (("ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "gemini"),
        (("GROQ_API_KEY", "ANTHROPIC_API_KEY"), "anthropic"),
        (("GROQ_API_KEY", "DEEPSEEK_API_KEY", "ASSAY_API_KEY"), "local"),
    ],
)
async def test_auto_takes_the_first_provider_whose_key_is_set(
    settings: ModelSettings, keys: tuple[str, ...], taken: str
) -> None:
    chosen = having(settings, api_keys=dict.fromkeys(keys, SecretStr(SECRET)))

    found = await choose(chosen)

    assert found.name.partition(":")[0] == taken
    assert [one.name for one in await list_available(chosen) if one.by_auto] == [found.name]


async def test_a_key_of_blanks_is_none(settings: ModelSettings) -> None:
    found = await choose(having(settings, api_keys={"OPENAI_API_KEY": SecretStr("  ")}))

    assert found.name.startswith("local:")


async def test_auto_takes_ones_own_endpoint_after_the_keys(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    own = having(settings, base_url=endpoint.base_url)
    both = having(own, api_keys={"ANTHROPIC_API_KEY": SecretStr(SECRET)})

    assert (await choose(own)).name == "custom"
    assert (await choose(both)).name.startswith("anthropic:")


async def test_auto_takes_a_server_that_answers_before_the_embedded_model(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    chosen = having(settings, base_urls={"llamacpp": endpoint.base_url})

    found = await choose(chosen, timeout_s=TIMEOUT_S)

    assert found.name == "llamacpp:first"
    assert found.reason.endswith("has 2 models")


async def test_auto_does_not_wait_for_a_server_that_says_nothing(settings: ModelSettings) -> None:
    with serve_chat(silent=True) as silent:
        found = await choose(having(settings, base_urls={"ollama": silent.base_url}))

    assert found.name == f"local:{next(iter(known_weights()))}"


async def test_auto_passes_over_a_provider_whose_extra_is_not_installed(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"OPENAI_API_KEY": SecretStr(SECRET), "ANTHROPIC_API_KEY": SecretStr(SECRET)}

    with without(monkeypatch, "openai"):
        found = by_name(await list_available(having(settings, api_keys=keys)))

    assert found["anthropic"].by_auto
    assert found["openai"].reason == "the extra 'openai' is not installed"
    assert found["openai"].fix == "run `pip install 'assay-agent[openai]'`"


async def test_auto_with_nothing_at_all_says_what_to_install(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        without(monkeypatch, "xllamacpp"),
        pytest.raises(MissingExtraError, match="the embedded model needs an extra") as caught,
    ):
        await choose(settings)

    assert caught.value.extra == "local"


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("openai", "openai:m", "openai"),
        ("anthropic", "anthropic:m", "anthropic"),
        ("google.genai", "gemini:m", "gemini"),
        ("xllamacpp", "local", "local"),
    ],
)
async def test_what_is_not_installed_is_named(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    keys = dict.fromkeys(KEY_VARIABLES, SecretStr(SECRET))

    with without(monkeypatch, module), pytest.raises(MissingExtraError) as caught:
        async with open_model(name, having(settings, api_keys=keys)):
            pass

    assert caught.value.extra == extra


async def test_what_auto_took_is_said(settings: ModelSettings, endpoint: ChatEndpoint) -> None:
    said: list[str] = []

    async with open_model(
        "auto", with_key(settings, endpoint), OpenOptions(on_notice=said.append)
    ) as model:
        await model.reply(ASKED)

    assert said == [f"using {model.name}: OPENAI_API_KEY is set"]


async def test_the_survey_says_of_everything_why(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    chosen = having(
        with_key(settings, endpoint), base_urls={"ollama": endpoint.base_url}, local_path="/no/such"
    )

    found = await list_available(chosen, timeout_s=TIMEOUT_S)

    told = by_name(found)
    assert (told["openai"].usable, told["openai"].reason) == (True, "OPENAI_API_KEY is set")
    assert told["groq"].reason == "GROQ_API_KEY is not set"
    assert told["ollama"].name == "ollama:first"
    assert told["vllm"].reason.startswith("nothing answers at http://127.0.0.1:")
    assert told["local"].reason == "there is no file '/no/such'"
    assert told["local:qwen2.5-coder-0.5b"].reason == "fetches 0.5 GB at first use"
    assert all(one.reason for one in found)
    assert SECRET not in repr(found)


async def test_a_service_of_ours_is_no_server_of_models(
    settings: ModelSettings, endpoint: ChatEndpoint
) -> None:
    endpoint.listing = b'{"object": "list", "data": [{"id": "assay", "owned_by": "assay"}]}'
    chosen = having(settings, base_urls={"vllm": endpoint.base_url})

    told = by_name(await list_available(chosen, timeout_s=TIMEOUT_S))

    assert not told["vllm"].usable


async def test_weights_of_ones_own_must_be_weights(settings: ModelSettings, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")

    for path in (tmp_path / "model.gguf", tmp_path / "absent.gguf"):
        with pytest.raises(UsageError):
            async with open_model("local", having(settings, local_path=path)):
                pass


async def test_what_is_fetched_and_how_much_is_said_before(tmp_path: Path) -> None:
    content = b"GGUF" + bytes(10_000)
    told: list[str] = []
    with serve_file(content) as served:
        weights = Weights(
            name="tiny",
            title="Tiny",
            licence="MIT",
            file_name="tiny.gguf",
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            context_tokens=100,
            sampling=next(iter(known_weights().values())).sampling,
            source=(FileSource(url=served.url),),
        )
        store = WeightsStore(folder=tmp_path)
        opening = OpenOptions(
            on_notice=told.append,
            on_progress=lambda done, total, _: told.append(f"{done} of {total}"),
        )

        path = await pull(weights, store, opening)
        again = await pull(weights, store, opening)

    assert path.read_bytes() == content
    assert told[0] == f"fetching Tiny once: 0.0 GB into {tmp_path} (MIT)"
    assert told[-1] == f"{len(content)} of {len(content)}"
    assert again == path
    assert len(served.starts) == 1


def test_weights_are_kept_in_the_cache_of_the_settings(settings: ModelSettings) -> None:
    assert weights_store(settings).folder == settings.cache_dir / "models"


def test_every_key_that_the_catalogue_names_is_read_by_the_settings() -> None:
    named = {provider.key_variable for provider in catalogue.providers()} - {""}

    assert named <= set(KEY_VARIABLES)


async def test_an_opened_model_raises_only_what_is_promised(
    settings: ModelSettings, tmp_path: Path
) -> None:
    async with open_model(script(tmp_path, {"text": "a"}), settings) as model:
        await model.reply(ASKED)

        with pytest.raises(AssayError, match="a request more came"):
            await model.reply(ASKED)


def test_the_reference_names_every_provider_with_its_key_and_extra() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    known = catalogue.providers()

    missing = [
        provider.name
        for provider in known
        if not any(
            row.startswith(f"| `{provider.name}` |")
            and f"`{provider.key_variable}`" in row.replace("none", "``")
            and row.endswith(f"| `{provider.extra}` |")
            for row in rows
        )
    ]

    assert missing == []


def test_the_reference_names_every_setting_and_every_embedded_model() -> None:
    text = PAGE.read_text()
    # These are found out, not set.
    names = set(ModelSettings.model_fields) - {"api_keys", "budget", "named", "pip_environment"}

    assert [name for name in names if f"| `{name}` |" not in text] == []
    for weights in known_weights().values():
        row = next(
            line for line in text.splitlines() if line.startswith(f"| `local:{weights.name}`")
        )
        assert f"{weights.size_bytes / 1e9:.1f} GB | {weights.licence} |" in row
