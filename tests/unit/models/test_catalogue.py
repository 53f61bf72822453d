"""What is known of providers and models, and what is assumed of those that nobody knows."""

import sys
from urllib.parse import urlsplit

import pytest
from genai_prices.data_snapshot import get_snapshot

from assay.contracts.errors import MissingExtraError, UsageError
from assay.contracts.messages import Price
from assay.models.catalogue import (
    FREE,
    Provider,
    describe_model,
    model_info,
    parameters_in,
    provider,
    providers,
    quirks_for,
)
from assay.models.served import ServedModel
from assay.settings.sections import NamedModelSettings, PriceSettings

HOSTED = [known for known in providers() if not known.local]
LOCAL = [known for known in providers() if known.local]


def name_of(known: Provider) -> str:
    return known.name


def test_all_promised_providers_are_there() -> None:
    assert {known.name for known in providers()} == {
        *("openai", "openrouter", "gemini", "gemini-openai", "anthropic", "deepseek", "groq"),
        *("ollama", "lmstudio", "vllm", "llamacpp"),
    }


def test_an_unknown_provider_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="'closedai'") as raised:
        provider("closedai")

    assert "openrouter" in raised.value.hint


@pytest.mark.parametrize("known", HOSTED, ids=name_of)
def test_a_hosted_provider_has_a_key_a_default_and_its_price(known: Provider) -> None:
    info = model_info(known, known.default_model)

    assert known.key_variable.endswith("_API_KEY")
    assert urlsplit(known.base_url).scheme == "https"
    assert info.price is not None
    assert info.price.input_usd > 0
    assert info.tool_calls
    assert not info.local
    assert info.context_tokens > info.max_output_tokens


@pytest.mark.parametrize("known", LOCAL, ids=name_of)
def test_a_local_server_costs_nothing_and_needs_no_key(known: Provider) -> None:
    info = model_info(known, "whatever:7b")

    assert urlsplit(known.base_url).hostname == "127.0.0.1"
    assert known.key_variable == ""
    assert info.price == FREE
    assert info.local
    assert not info.tool_calls, "an unknown small model speaks the plain-text protocol"


def test_a_model_that_is_called_free_costs_nothing() -> None:
    assert model_info(provider("openrouter"), "xiaomi/mimo-v2-flash:free").price == FREE


def test_the_models_that_see_are_known() -> None:
    seeing = {
        name: model_info(provider(where), name).sees_pictures
        for where, name in (
            ("openai", "gpt-4o"),
            ("openai", "o3-mini"),
            ("anthropic", "claude-sonnet-5-5"),
            ("gemini", "gemini-3.8-flash"),
            ("deepseek", "deepseek-v4-flash"),
        )
    }
    assert [name for name, sees in seeing.items() if sees] == [
        "gpt-4o",
        "claude-sonnet-5-5",
        "gemini-3.8-flash",
    ]


def test_the_price_of_an_unknown_model_is_unknown() -> None:
    info = model_info(provider("openai"), "no-such-model")

    assert info.price is None
    assert info.context_tokens > 0


def test_a_price_that_was_given_wins() -> None:
    mine = Price(input_usd=1.0, output_usd=2.0)
    openai = provider("openai")

    own = NamedModelSettings(price=PriceSettings(input_usd=1.0, output_usd=2.0))

    assert model_info(openai, "gpt-4o", own=own).price == mine
    assert model_info(openai, "gpt-4o").price != mine


def test_without_the_list_of_prices_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    assert model_info(provider("openai"), "gpt-4o").price is None


def test_the_price_of_writing_to_a_cache_counts_for_all_input_unless_writes_are_reported() -> None:
    """Claude Sonnet 4.5: 3 dollars to read, 3.75 to write to the cache, 0.30 to read from it."""
    price = model_info(provider("anthropic"), "claude-sonnet-4-5").price

    assert price == Price(
        input_usd=3.0, output_usd=15.0, cached_input_usd=0.3, cache_write_usd=3.75
    )
    elsewhere = model_info(provider("openrouter"), "anthropic/claude-sonnet-4.5").price
    assert elsewhere is not None
    assert (elsewhere.input_usd, elsewhere.cache_write_usd) == (3.75, None)


def test_a_context_ends_where_a_higher_price_begins() -> None:
    """Gemini 2.5 Pro costs more for requests of more than 200,000 tokens."""
    info = model_info(provider("gemini"), "gemini-2.5-pro")

    assert info.context_tokens == 200_000


@pytest.mark.parametrize(
    ("model", "context_tokens"),
    [
        ("gpt-4o-mini", 128_000),
        ("openai/gpt-4o-mini", 128_000),
        ("GPT-4.1", 1_047_576),
        ("anthropic/claude-sonnet-4.5", 200_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("qwen3-8b", 131_072),
        ("qwen3:8b", 131_072),
        ("qwen/qwen3.8-27b", 262_144),
        ("qwen3.5:7b", 262_144),
        ("gpt-5.4", 1_050_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-4-0613", 8_192),
        ("never-heard-of-it", 32_768),
    ],
)
def test_the_longest_prefix_decides(model: str, context_tokens: int) -> None:
    unpriced = provider("openai").model_copy(update={"prices": ""})

    assert model_info(unpriced, model).context_tokens == context_tokens


def test_what_an_engine_can_do_with_any_model_wins_over_the_model() -> None:
    llamacpp, openrouter = provider("llamacpp"), provider("openrouter")

    assert model_info(llamacpp, "qwen2.5-coder-1.5b").supports_prefill
    assert model_info(llamacpp, "qwen2.5-coder-1.5b").supports_json_schema
    assert not model_info(openrouter, "claude-sonnet-4.5").supports_prefill


@pytest.mark.parametrize(
    ("name", "library"),
    [("groq", "openai"), ("anthropic", "anthropic"), ("gemini", "google.genai.types")],
)
def test_a_missing_sdk_names_the_extra(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = "openai_compatible" if library == "openai" else name
    monkeypatch.delitem(sys.modules, f"assay.models.providers.{client}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(MissingExtraError) as raised:
        provider(name).load()

    assert raised.value.extra == provider(name).wire


def test_models_that_refuse_a_temperature_are_known() -> None:
    assert not quirks_for("gpt-5-mini").takes_temperature
    assert not quirks_for("anthropic/claude-opus-4.7").takes_temperature
    assert not quirks_for("o3").takes_stop
    assert quirks_for("gpt-4o").takes_temperature
    assert quirks_for("claude-sonnet-4-5").takes_temperature
    assert quirks_for("never-heard-of-it").takes_stop


@pytest.mark.parametrize("known", HOSTED, ids=name_of)
def test_a_default_model_is_one_that_its_provider_still_offers(known: Provider) -> None:
    _, listed = get_snapshot().find_provider_model(known.default_model, None, known.prices, None)

    assert not listed.deprecated
    assert listed.context_window


@pytest.mark.parametrize(
    ("name", "model", "context_tokens"),
    [
        ("deepseek", "deepseek-v3.2", 128_000),
        ("openrouter", "moonshotai/kimi-k2-0905", 262_144),
        ("openai", "gpt-5.3", 128_000),
    ],
)
def test_the_size_that_is_listed_for_a_model_wins_over_that_of_its_family(
    name: str, model: str, context_tokens: int
) -> None:
    known = provider(name)

    own = NamedModelSettings(price=PriceSettings(input_usd=0, output_usd=0))

    assert model_info(known, model).context_tokens == context_tokens
    assert model_info(known, model, own=own).context_tokens == context_tokens, (
        "a price of one's own says nothing of the size"
    )


def test_no_model_is_said_to_write_more_than_it_reads() -> None:
    assert model_info(provider("openai"), "gpt-4").max_output_tokens <= 8_192
    for model in ("gpt-4", "gpt-4o-transcribe", "never-heard-of-it"):
        info = model_info(provider("openai"), model)
        assert info.max_output_tokens <= info.context_tokens


def test_a_seed_is_for_those_who_take_one() -> None:
    """Who leaves no temperature to be chosen draws as it likes."""
    assert model_info(provider("ollama"), "qwen2.5-coder:7b").supports_seed
    assert model_info(provider("openai"), "gpt-4o").supports_seed
    assert not model_info(provider("openai"), "gpt-5").supports_seed
    assert not model_info(provider("anthropic"), "claude-sonnet-4-5").supports_seed


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3-coder-480b", 480 * 10**9),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480 * 10**9),
        ("qwen2.5-coder:1.5b", 15 * 10**8),
        ("llama-3.1-8b-instant", 8 * 10**9),
        ("mixtral-8x7b", 56 * 10**9),
        ("gemma-3n-e4b", 4 * 10**9),
        ("smollm2:135m", 135 * 10**6),
        ("gpt-4.1", None),
        ("qwen2.5-7b-instruct-1m", 7 * 10**9),
        ("some-model-4bit", None),
        ("a35b", None),
    ],
)
def test_a_name_gives_the_number_of_parameters(name: str, parameters: int | None) -> None:
    assert parameters_in(name) == parameters


@pytest.mark.parametrize("server", ["vllm", "ollama", "lmstudio", "llamacpp", "openrouter"])
@pytest.mark.parametrize(
    ("model", "small"),
    [("qwen3-coder-480b", False), ("llama-3.1-8b", True), ("some-model", False)],
)
def test_a_model_is_small_or_not_wherever_it_runs(server: str, model: str, *, small: bool) -> None:
    assert model_info(provider(server), model).small is small


def test_a_large_model_of_a_server_gets_tools_and_its_own_length() -> None:
    info = model_info(provider("vllm"), "qwen3-coder-480b")

    assert (info.tool_calls, info.context_tokens, info.max_output_tokens) == (True, 262_144, 65_536)


def test_what_a_server_reports_wins_over_the_catalogue() -> None:
    served = ServedModel(
        name="mine",
        base_name="Qwen/Qwen3-8B",
        context_tokens=40_000,
        parameters=8 * 10**9,
        sees_pictures=True,
    )

    described = describe_model(provider("vllm"), "mine", served=served)

    assert (described.info.context_tokens, described.info.max_output_tokens) == (40_000, 16_384)
    assert (described.info.small, described.info.sees_pictures) == (True, True)
    assert described.sources["context_tokens"] == described.sources["small"] == "server"
    assert described.sources["max_output_tokens"] == "catalogue", "by the model behind the alias"


def test_own_settings_win_over_everything() -> None:
    served = ServedModel(name="m:1b", context_tokens=40_000, parameters=10**9, tool_calls=False)
    own = NamedModelSettings(
        context_tokens=100_000, max_output_tokens=50_000, tool_calls=True, vision=True, small=False
    )

    described = describe_model(provider("ollama"), "m:1b", own=own, served=served)

    info = described.info
    assert (info.context_tokens, info.max_output_tokens) == (100_000, 50_000)
    assert (info.tool_calls, info.sees_pictures, info.small) == (True, True, False)
    assert set(described.sources.values()) == {"settings", "catalogue", "default"}


def test_a_model_that_writes_calls_as_text_does_so_at_a_server_that_accepts_tools() -> None:
    served = ServedModel(name="qwen2.5-coder:32b", tool_calls=True)

    assert not model_info(provider("ollama"), served.name, served=served).tool_calls


def test_an_unknown_model_gets_a_quarter_of_the_context_of_its_server() -> None:
    served = ServedModel(name="mine", context_tokens=200_000)

    described = describe_model(provider("vllm"), "mine", served=served)

    assert (described.info.max_output_tokens, described.info.small) == (50_000, False)
    assert described.info.tool_calls
    assert described.sources["max_output_tokens"] == described.sources["small"] == "default"
