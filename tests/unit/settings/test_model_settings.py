import os
import traceback
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.settings.load import KEY_VARIABLES, ModelSettings, load_settings

SECRET = "sk-secret-0123456789"  # noqa: S105 - opens nothing


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without settings or keys, whatever the person who runs the tests has."""
    for name in tuple(os.environ):  # noqa: TID251 - to forget them
        if name.startswith("ASSAY_") or name in KEY_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "assay").mkdir()
    return tmp_path / "assay"


def credentials(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / "credentials.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def models() -> ModelSettings:
    return load_settings().models


def key(settings: ModelSettings) -> str:
    return settings.api_keys["OPENAI_API_KEY"].get_secret_value()


def test_without_any_word_a_model_is_chosen_and_nothing_is_capped() -> None:
    found = models()

    assert (found.default, found.base_url, dict(found.api_keys)) == ("auto", None, {})
    assert (found.budget.usd, found.budget.tokens, found.budget.calls) == (None, None, None)


def test_keys_come_from_their_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.setenv(name, f" {SECRET}-{name}\n")

    found = models().api_keys

    assert {name: secret.get_secret_value() for name, secret in found.items()} == {
        name: f"{SECRET}-{name}" for name in KEY_VARIABLES
    }


def test_a_variable_that_is_empty_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " ")

    assert dict(models().api_keys) == {}


def test_keys_come_from_a_file_of_their_own_unless_a_variable_is_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials(home, f'OPENAI_API_KEY = "{SECRET}"\nGROQ_API_KEY = "other"\n')
    from_file = key(models())
    monkeypatch.setenv("OPENAI_API_KEY", "newer")

    assert (from_file, key(models())) == (SECRET, "newer")
    assert models().api_keys["GROQ_API_KEY"].get_secret_value() == "other"


def test_the_file_of_keys_stands_beside_the_settings_file_that_was_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "other.toml").write_text("")
    credentials(home, f'OPENAI_API_KEY = "{SECRET}"')
    monkeypatch.setenv("ASSAY_CONFIG", str(home / "other.toml"))

    assert key(models()) == SECRET


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o700, 0o604])
def test_keys_that_others_could_read_or_change_are_refused(home: Path, mode: int) -> None:
    path = credentials(home, f'OPENAI_API_KEY = "{SECRET}"', mode)

    with pytest.raises(UsageError, match="holds keys and is open to others") as caught:
        models()

    assert caught.value.hint == f"run `chmod 600 {path}`"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_keys_in_a_file_of_somebody_else_are_refused(home: Path) -> None:
    path = credentials(home, f'OPENAI_API_KEY = "{SECRET}"')
    os.chown(path, 12345, 12345)

    with pytest.raises(UsageError, match="belongs to another user") as caught:
        models()

    assert "chown" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        f"OPENAI_API_KEY = {SECRET}",
        f'OPENAI_API_KEY = ["{SECRET}"]',
        f'OPENAI_API_KEY = {{ key = "{SECRET}" }}',
        f'OPNAI_API_KEY = "{SECRET}"',
        f'models.base_url = "{SECRET}"',
    ],
)
def test_a_mistake_in_the_file_of_keys_does_not_show_a_key(home: Path, text: str) -> None:
    credentials(home, text)

    with pytest.raises(UsageError) as caught:
        models()

    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert SECRET not in shown


@pytest.mark.parametrize(
    "text",
    [
        f'[models.api_keys]\nOPENAI_API_KEY = "{SECRET}"\n',
        f'models.api_keys = "{SECRET}"\n',
    ],
)
def test_keys_do_not_belong_into_the_settings_file(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text)

    with pytest.raises(UsageError, match="keys do not belong into") as caught:
        models()

    assert "credentials.toml" in caught.value.hint
    assert SECRET not in str(caught.value)


def test_a_key_shows_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("PIP_INDEX_URL", f"https://user:{SECRET}@index.example/simple")
    settings = load_settings()

    shown = (
        repr(settings),
        str(settings),
        repr(settings.models),
        str(settings.model_dump()),
        str(settings.model_dump(mode="json")),
        settings.model_dump_json(),
    )

    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize(
    "address",
    [f"http://me:{SECRET}@host/v1", f"ftp://{SECRET}", f"http://host/v1?key={SECRET}", SECRET],
)
def test_an_address_with_a_secret_in_it_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ASSAY_BASE_URL", address)

    with pytest.raises(UsageError, match=r"models\.base_url: an http or https address") as caught:
        models()

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_endpoint_and_weights_of_ones_own_have_short_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_BASE_URL", "http://127.0.0.1:9000/v1")
    monkeypatch.setenv("ASSAY_MODEL_PATH", "/models/mine.gguf")

    found = models()

    assert (found.base_url, found.local_path) == (
        "http://127.0.0.1:9000/v1",
        Path("/models/mine.gguf"),
    )


def test_budget_and_prices_come_from_the_file_and_variables(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.toml").write_text(
        '[models]\ndefault = "openai:m"\n[models.budget]\nusd = 0.5\n'
        '[models."openai:m".price]\ninput_usd = 1\noutput_usd = 2\n'
    )
    monkeypatch.setenv("ASSAY_MODELS__BUDGET__CALLS", "7")

    found = models()

    assert (found.default, found.budget.usd, found.budget.calls) == ("openai:m", 0.5, 7)
    price = found.named["openai:m"].price
    assert price is not None
    assert price.output_usd == 2


@pytest.mark.parametrize(
    "text",
    [
        "[models.budget]\nusd = -1\n",
        "[models.budget]\nusd = inf\n",
        "[models.budget]\ncalls = 0\n",
        "[models]\ntimeout_s = 0\n",
        '[models]\ndefault = ""\n',
        '[models."a:b".price]\ninput_usd = 1\n',
        "[models]\nbudget = 5\n",
        "models = 5\n",
    ],
)
def test_a_value_that_will_not_do_is_refused(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text)

    with pytest.raises(UsageError, match="setting models"):
        models()


def test_a_model_has_settings_of_its_own(home: Path) -> None:
    (home / "config.toml").write_text(
        '[models."vllm:qwen3-coder-480b"]\ncontext_tokens = 100000\nmax_output_tokens = 30000\n'
        'reasoning_effort = "high"\ntool_calls = true\nvision = false\nsmall = false\n'
    )

    own = models().named["vllm:qwen3-coder-480b"]

    assert (own.context_tokens, own.max_output_tokens) == (100_000, 30_000)
    assert (own.reasoning_effort, own.tool_calls, own.vision, own.small) == (
        "high",
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[models."vllm:m"]\nsmall = 3\n', 'setting models."vllm:m".small: '),
        ('[models."vllm:m"]\nwindow = 3\n', "there is no setting 'models.\"vllm:m\".window'"),
        ('[models."vllm:m".price]\ninput_usd = 1\n', 'setting models."vllm:m".price.output_usd: '),
        (
            '[models."local:m"]\nsmall = true\n',
            "setting models: 'local:m' is no model of a provider",
        ),
        ('[models."qwen3-8b"]\nsmall = true\n', "there is no setting 'models.qwen3-8b'"),
    ],
)
def test_a_wrong_setting_of_a_model_is_named(home: Path, text: str, complaint: str) -> None:
    (home / "config.toml").write_text(text)

    with pytest.raises(UsageError) as caught:
        models()

    assert str(caught.value).startswith(complaint)
    assert caught.value.hint


def test_weights_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")

    assert models().cache_dir == Path("/caches/assay")


def test_pip_is_told_of_its_index_and_of_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")

    found = models().pip_environment

    assert found["PIP_INDEX_URL"] == "https://index.example/simple"
    assert found["https_proxy"] == "http://proxy.example:3128"
    assert SECRET not in found.values()
