"""A project's `.env` gives keys and a few settings, and cannot send a key elsewhere."""

from pathlib import Path

import pytest

from assay.settings.load import Settings, load_settings, project_notice

KEY = "OPENAI_API_KEY"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config" / "assay"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    for name in (KEY, "ASSAY_API_KEY", "ASSAY_BASE_URL", "ASSAY_MODELS__DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def project(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / ".env").write_text(text)
    return folder


def credentials(config: Path, text: str) -> None:
    path = config / "credentials.toml"
    path.write_text(text)
    path.chmod(0o600)


def keys(settings: Settings) -> dict[str, str]:
    return {name: key.get_secret_value() for name, key in settings.models.api_keys.items()}


def test_keys_and_settings_are_read_in_the_documented_order(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(
        tmp_path,
        "# comment\nexport OPENAI_API_KEY='of-project' # mine\n"
        'ASSAY_MODELS__DEFAULT="openai:of-project"\nDATABASE_URL=postgres://x\n',
    )
    (config / "config.toml").write_text('[models]\ndefault = "openai:of-file"\n')
    credentials(config, 'OPENAI_API_KEY = "of-file"\n')

    settings = load_settings(project=folder)
    assert (keys(settings)[KEY], settings.models.default) == ("of-project", "openai:of-project")
    assert keys(load_settings())[KEY] == "of-file"

    monkeypatch.setenv(KEY, "of-environment")
    assert keys(load_settings(project=folder))[KEY] == "of-environment"
    words = {"models": {"default": "openai:of-flag"}}
    assert load_settings(words, project=folder).models.default == "openai:of-flag"


@pytest.mark.parametrize("own", ["", "ASSAY_API_KEY=of-project\n"])
@pytest.mark.parametrize("where", ["environment", "file"])
def test_no_key_of_the_person_goes_to_an_address_of_a_project(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, own: str, where: str
) -> None:
    folder = project(tmp_path, f"ASSAY_BASE_URL=https://evil.example/v1\n{own}")
    if where == "environment":
        monkeypatch.setenv("ASSAY_API_KEY", "of-person")
    else:
        credentials(config, 'ASSAY_API_KEY = "of-person"\n')

    settings = load_settings(project=folder)

    assert str(settings.models.base_url) == "https://evil.example/v1"
    assert keys(settings).get("ASSAY_API_KEY", "") == ("of-project" if own else "")


def test_an_address_of_the_person_keeps_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "ASSAY_BASE_URL=https://evil.example/v1\nASSAY_API_KEY=of-project\n")
    monkeypatch.setenv("ASSAY_BASE_URL", "https://mine.example/v1")
    monkeypatch.setenv("ASSAY_API_KEY", "of-person")

    settings = load_settings(project=folder)

    assert str(settings.models.base_url) == "https://mine.example/v1"
    assert keys(settings)["ASSAY_API_KEY"] == "of-person"


@pytest.mark.parametrize(
    "line",
    [
        "ASSAY_SANDBOX__ISOLATION=restricted",
        "ASSAY_SANDBOX__BACKEND=remote",
        "ASSAY_SANDBOX__HOSTS=evil.example",
        "ASSAY_MODELS__BASE_URLS__OPENAI=https://evil.example/v1",
        "ASSAY_MODELS__BUDGET__USD=1000",
        "ASSAY_MODELS__LOCAL_PATH=./evil.gguf",
        "ASSAY_MODELS__DEFAULT=local:./evil.gguf",
        "ASSAY_MODELS__DEFAULT=scripted:./evil.jsonl",
        "ASSAY_AGENT__SCREENING=off",
        "ASSAY_CHAT__SCREENING=off",
        "ASSAY_STATE_DIR=./state",
        "ASSAY_CONFIG=./config.toml",
        "ASSAY_TOOLS__MCP__X__URL=https://evil.example",
        "HTTPS_PROXY=http://evil.example",
        "DOCKER_HOST=tcp://evil.example",
        "CODE_EXECUTOR_HOST=evil.example",
    ],
)
def test_a_project_cannot_weaken_or_redirect_anything(tmp_path: Path, line: str) -> None:
    folder = project(tmp_path, line)

    assert load_settings(project=folder) == load_settings()
    name = line.partition("=")[0]
    assert (name in project_notice(folder)) == name.startswith("ASSAY_")
    assert "uses" not in project_notice(folder)


def test_what_is_used_is_told_by_name_and_never_by_value(tmp_path: Path) -> None:
    folder = project(tmp_path, "OPENAI_API_KEY=hunter2\n")

    assert project_notice(folder).startswith("uses OPENAI_API_KEY of ")
    assert "hunter2" not in project_notice(folder) + repr(load_settings(project=folder))


def test_a_link_or_a_file_that_is_no_text_says_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path, "OPENAI_API_KEY=x\n")
    target = (folder / ".env").rename(tmp_path / "elsewhere")
    (folder / ".env").symlink_to(target)
    assert not project_notice(folder)

    (folder / ".env").unlink()
    (folder / ".env").write_bytes(b"\xff\xfeOPENAI_API_KEY=x\n")
    assert not project_notice(folder)
