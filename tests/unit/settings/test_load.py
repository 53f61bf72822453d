import os
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import Isolation
from assay.settings.load import Settings, load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without settings, whatever the person who runs the tests has."""
    for name in tuple(os.environ):  # noqa: TID251 - to forget them
        if name.startswith("ASSAY_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def write_file(home: Path, text: str | bytes) -> Path:
    path = home / "assay" / "config.toml"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def pool_size(settings: Settings) -> int:
    return settings.sandbox.pool_size


def test_without_any_word_the_defaults_hold() -> None:
    sandbox = load_settings().sandbox

    assert (sandbox.backend, sandbox.isolation, sandbox.namespaces) == ("auto", None, True)
    assert (sandbox.pool_size, sandbox.max_concurrent) == (3, 32)


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [pool_size(load_settings())]
    write_file(home, "[sandbox]\npool_size = 5\n")
    found.append(pool_size(load_settings()))
    monkeypatch.setenv("ASSAY_SANDBOX__POOL_SIZE", "7")
    found.append(pool_size(load_settings()))

    found.append(pool_size(load_settings({"sandbox": {"pool_size": 9}})))

    assert found == [3, 5, 7, 9]


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("", ()),
        ("numpy", (("numpy",),)),
        ("numpy, pandas; sklearn", (("numpy", "pandas"), ("sklearn",))),
    ],
)
@pytest.mark.usefixtures("home")
def test_stages_may_be_one_text(
    text: str, stages: tuple[tuple[str, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_SANDBOX__PRELOAD", text)

    assert load_settings().sandbox.preload == stages


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("hosts", "a.example, *.b.example:443", ("a.example", "*.b.example:443")),
        ("hosts", "", ()),
        ("read_only", "/opt/data, /srv/models", (Path("/opt/data"), Path("/srv/models"))),
        ("packages", "requests>=2,<3, attrs", ("requests>=2,<3", "attrs")),
        ("packages", "httpx[http2,socks]==0.28.*,attrs", ("httpx[http2,socks]==0.28.*", "attrs")),
        ("packages", "", ()),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_list_may_be_one_text(
    name: str, text: str, values: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ASSAY_SANDBOX__{name.upper()}", text)

    assert getattr(load_settings().sandbox, name) == values


@pytest.mark.usefixtures("home")
def test_packages_of_mcp_servers_may_be_one_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_MCP__PACKAGES", "requests>=2,<3, attrs")

    assert load_settings().mcp.packages == ("requests>=2,<3", "attrs")


@pytest.mark.parametrize("name", ["state_dir", "config_dir"])
def test_a_setting_outside_of_all_sections_has_a_variable_too(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home, f"{name} = '/from/file'\n")
    variable = f"ASSAY_{name.upper()}"

    monkeypatch.setenv(variable, "")
    found = [getattr(load_settings(), name)]
    monkeypatch.setenv(variable, "/from/variable")
    found.append(getattr(load_settings(), name))

    assert found == [Path("/from/file"), Path("/from/variable")]


def test_what_one_source_leaves_out_another_may_say(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home, "[sandbox]\nmax_concurrent = 5\nisolation = 'isolated'\n")
    monkeypatch.setenv("ASSAY_SANDBOX__POOL_SIZE", "7")

    sandbox = load_settings({"sandbox": {"backend": "native"}}).sandbox

    assert (sandbox.max_concurrent, sandbox.pool_size, sandbox.backend) == (5, 7, "native")
    assert sandbox.isolation is Isolation.ISOLATED


def test_a_flag_that_was_not_given_overrides_nothing(home: Path) -> None:
    write_file(home, "[sandbox]\nbackend = 'native'\n")

    assert load_settings({"sandbox": {"backend": None}}).sandbox.backend == "native"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[sandbox]\npool_siz = 5\n", "sandbox.pool_siz"),
        ("[sandbx]\npool_size = 5\n", "sandbx"),
        ("pool_size = 5\n", "pool_size"),
    ],
)
def test_a_typo_in_the_file_is_refused_with_its_path(home: Path, text: str, path: str) -> None:
    write_file(home, text)

    with pytest.raises(UsageError, match=f"there is no setting '{path}'") as caught:
        load_settings()

    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "path"),
    [("ASSAY_SANDBOX__POOL_SIZ", "sandbox.pool_siz"), ("ASSAY_SANDBX__POOL_SIZE", "sandbx")],
)
def test_a_typo_in_a_variable_is_refused_with_its_path(
    monkeypatch: pytest.MonkeyPatch, variable: str, path: str
) -> None:
    monkeypatch.setenv(variable, "5")

    with pytest.raises(UsageError, match=f"there is no setting '{path}'"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[sandbox]\npool_size = -1\n", "sandbox.pool_size"),
        ("[sandbox]\npool_size = 'many'\n", "sandbox.pool_size"),
        ("[sandbox]\nmax_concurrent = 0\n", "sandbox.max_concurrent"),
        ("[sandbox]\nisolation = 'total'\n", "sandbox.isolation"),
        ("[sandbox]\nbackend = 'chroot'\n", "sandbox.backend"),
        ("sandbox = 3\n", "sandbox"),
    ],
)
def test_a_value_that_will_not_do_is_refused_with_its_path(
    home: Path, text: str, path: str
) -> None:
    write_file(home, text)

    with pytest.raises(UsageError, match=f"setting {path}: "):
        load_settings()


def test_a_section_that_is_no_table_is_refused_beside_a_variable_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home, "sandbox = 3\n")
    monkeypatch.setenv("ASSAY_SANDBOX__POOL_SIZE", "1")

    with pytest.raises(UsageError, match="setting sandbox: "):
        load_settings()


def test_a_variable_that_makes_a_table_of_a_value_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_SANDBOX__POOL_SIZE", "1")
    monkeypatch.setenv("ASSAY_SANDBOX__POOL_SIZE__MOST", "1")

    with pytest.raises(UsageError, match=r"sandbox\.pool_size"):
        load_settings()


@pytest.mark.parametrize(
    "content", ["[sandbox", "\0", b"\xff\xfe"], ids=["half a table", "NUL", "not UTF-8"]
)
def test_a_file_that_cannot_be_read_is_named(home: Path, content: str | bytes) -> None:
    path = write_file(home, content)

    with pytest.raises(UsageError, match="cannot read the settings file") as caught:
        load_settings()

    assert str(path) in str(caught.value)


def test_a_folder_in_place_of_the_file_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CONFIG", str(home))

    with pytest.raises(UsageError, match="cannot read the settings file"):
        load_settings()


def test_a_file_can_be_named_and_then_the_usual_one_is_not_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home, "[sandbox]\npool_size = 5\nmax_concurrent = 5\n")
    (home / "other.toml").write_text("[sandbox]\npool_size = 6\n")
    monkeypatch.setenv("ASSAY_CONFIG", str(home / "other.toml"))

    sandbox = load_settings().sandbox

    assert (sandbox.pool_size, sandbox.max_concurrent) == (6, 32)


def test_a_named_file_must_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = home / "absent.toml"
    monkeypatch.setenv("ASSAY_CONFIG", str(missing))

    with pytest.raises(UsageError, match="does not exist") as caught:
        load_settings()

    assert str(missing) in str(caught.value)
    assert "ASSAY_CONFIG" in caught.value.hint


def test_a_variable_that_names_no_file_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CONFIG", "")

    assert pool_size(load_settings()) == 3


def test_settings_cannot_be_changed_after_they_are_read() -> None:
    settings = load_settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.sandbox.pool_size = 4


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"ASSAY_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b"}, "/a"),
        ({"XDG_RUNTIME_DIR": "/b"}, "/b/assay"),
    ],
)
def test_the_runtime_folder_is_the_named_one_or_the_users(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert load_settings().sandbox.runtime_dir == Path(folder)


def test_toolchains_are_looked_for_along_the_search_path_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/a:/b")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no toolchain was fetched

    assert load_settings().sandbox.search_path == ("/a", "/b")


def test_the_key_of_e2b_comes_from_its_variable_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_secret")

    e2b = load_settings().sandbox.e2b

    assert e2b.api_key is not None
    assert e2b.api_key.get_secret_value() == "e2b_secret"
    assert "e2b_secret" not in repr(load_settings())


def test_the_key_of_e2b_does_not_belong_into_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[sandbox.e2b]\napi_key = "e2b_secret"\n')
    monkeypatch.setenv("ASSAY_CONFIG", str(path))

    with pytest.raises(UsageError, match="keys do not belong") as refusal:
        load_settings()

    assert "e2b_secret" not in str(refusal.value)
