"""Providers of other distributions: found by their entry points, and named when they are broken."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from assay.contracts.errors import UsageError
from assay.contracts.messages import Message, Request
from assay.models.open import open_model
from assay.models.resolve import Availability, extras_of, key_for, list_available, parse_name
from assay.settings.load import ModelSettings, load_settings
from tests.support.distributions import install_distribution

CODE = """
from contextlib import asynccontextmanager
from assay.contracts.messages import Message, Reply, StopReason, Usage
from assay.models.catalogue import Provider

class Echo:
    def __init__(self, name, info, key):
        self.name, self.info, self.key = name, info, key

    async def reply(self, request, *, on_text=lambda text: None):
        text = f"{self.key}: {request.messages[-1].text}"
        return Reply(
            message=Message(role="assistant", text=text),
            stop_reason=StopReason.ENDED,
            usage=Usage(calls=1, cost_usd=0.0),
            model=self.name,
        )

@asynccontextmanager
async def open_echo(provider, model, *, info, connection):
    yield Echo(f"{provider.name}:{model}", info, connection.api_key.get_secret_value())

PROVIDER = Provider(
    name="any", title="Acme", base_url="https://acme.example/v1", open=open_echo,
    key_variable="ACME_AI_API_KEY", default_model="small",
)
HOSTED = Provider(name="x", title="Acme", base_url="https://acme.example/v1", default_model="m")
THIEF = Provider(
    name="x", title="Acme", base_url="https://x.example", key_variable="OPENAI_API_KEY"
)
GOOGLE = THIEF.model_copy(update={"key_variable": "GOOGLE_API_KEY"})
NOT_ONE = "a text"
"""
KEY = "sk-acme-0123456789"
QUESTION = Request(messages=(Message(role="user", text="hello"),))

Install = Callable[..., None]


@pytest.fixture(name="settings")
def _settings(tmp_path: Path) -> ModelSettings:
    keys = {"ACME_AI_API_KEY": SecretStr(KEY)}
    return ModelSettings(cache_dir=tmp_path / "cache", api_keys=keys)


@pytest.fixture(name="install")
def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a distribution importable that declares providers, by name and object."""

    def install(distribution: str = "acme-assay", **declared: str) -> None:
        install_distribution(
            tmp_path / distribution,
            monkeypatch,
            name=distribution,
            modules={"acme_assay": CODE},
            group="assay.providers",
            entry_points={name.replace("_", "-"): value for name, value in declared.items()},
        )

    return install


async def listed(settings: ModelSettings) -> dict[str, Availability]:
    return {one.name: one for one in await list_available(settings)}


async def test_a_provider_of_another_distribution_answers(
    settings: ModelSettings, install: Install
) -> None:
    install(acme_ai="acme_assay:PROVIDER")

    async with open_model("acme-ai:large", settings) as model:
        reply = await model.reply(QUESTION)
    async with open_model("acme-ai", settings) as usual:
        assert usual.name == "acme-ai:small"

    assert (reply.message.text, reply.model) == (f"{KEY}: hello", "acme-ai:large")
    assert extras_of("acme-ai", settings) == ()


async def test_it_is_listed_and_auto_does_not_take_it(
    settings: ModelSettings, install: Install
) -> None:
    install(acme_ai="acme_assay:PROVIDER")

    found = (await listed(settings))["acme-ai:small"]
    without = (await listed(settings.model_copy(update={"api_keys": {}})))["acme-ai:small"]

    assert (found.usable, found.by_auto) == (True, False)
    assert found.reason == "ACME_AI_API_KEY is set"
    assert (without.usable, without.reason) == (False, "ACME_AI_API_KEY is not set")


def test_it_may_use_a_wire_format_of_assay_at_a_configured_address(
    settings: ModelSettings, install: Install
) -> None:
    install(hosted="acme_assay:HOSTED")
    elsewhere = {"base_urls": {"hosted": "https://elsewhere.example/v1"}}

    found = parse_name("hosted:m", settings.model_copy(update=elsewhere)).provider

    assert found is not None
    assert (found.name, found.wire, found.extra) == ("hosted", "openai", "openai")
    assert found.base_url == "https://elsewhere.example/v1"


def test_its_key_is_read_from_the_variable_of_its_name(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ACME_AI_API_KEY", KEY)
    assert "ACME_AI_API_KEY" not in load_settings().models.api_keys

    install(acme_ai="acme_assay:PROVIDER")

    loaded = load_settings().models
    assert loaded.api_keys["ACME_AI_API_KEY"].get_secret_value() == KEY
    assert KEY not in repr(loaded)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("acme_gone:PROVIDER", "ModuleNotFoundError: No module named 'acme_gone'"),
        ("acme_assay:GONE", "AttributeError"),
        ("acme_assay:NOT_ONE", "is a str, not a Provider"),
        ("acme_assay:THIEF", "reads its key from 'OPENAI_API_KEY'"),
    ],
)
async def test_a_broken_one_is_one_error_that_names_the_distribution(
    settings: ModelSettings, install: Install, value: str, why: str
) -> None:
    install(acme=value)

    with pytest.raises(UsageError, match=r"distribution acme-assay 1\.2 declares 'acme'") as raised:
        parse_name("acme:m", settings)

    assert why in str(raised.value)
    assert raised.value.hint
    found = await listed(settings)
    assert (found["acme"].usable, found["acme"].reason) == (False, str(raised.value))
    assert parse_name("openai:m", settings).provider is not None


async def test_a_provider_of_assay_cannot_be_replaced(
    settings: ModelSettings, install: Install
) -> None:
    install(openai="acme_assay:PROVIDER")

    found = parse_name("openai:m", settings).provider
    assert found is not None
    assert found.base_url == "https://api.openai.com/v1"
    with pytest.raises(UsageError, match=r"acme-assay 1.2 declares 'openai'.*a part of Assay"):
        parse_name("other:m", settings)


def test_two_distributions_cannot_declare_one_name(
    settings: ModelSettings, install: Install
) -> None:
    install(acme="acme_assay:PROVIDER")
    install("other-acme", acme="acme_assay:HOSTED")

    with pytest.raises(UsageError, match="other-acme") as raised:
        parse_name("acme:m", settings)

    assert "acme-assay 1.2" in str(raised.value)


def test_a_key_of_assay_does_not_go_to_an_address_of_another_distribution(
    settings: ModelSettings, install: Install
) -> None:
    install(hosted="acme_assay:HOSTED")

    assert key_for("https://acme.example/v1", settings).get_secret_value() == ""


def test_a_name_does_not_open_the_way_to_a_key_of_assay(
    settings: ModelSettings, install: Install
) -> None:
    install(google="acme_assay:GOOGLE")

    with pytest.raises(UsageError, match="reads its key from 'GOOGLE_API_KEY'"):
        parse_name("google:m", settings)


def test_an_unknown_name_lists_the_installed_ones(
    settings: ModelSettings, install: Install
) -> None:
    install(acme_ai="acme_assay:PROVIDER")

    with pytest.raises(UsageError) as raised:
        parse_name("xyzzy:m", settings)

    assert "acme-ai" in raised.value.hint
