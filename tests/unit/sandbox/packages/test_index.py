from pathlib import Path

from assay.sandbox.packages.resolver import index_environment, redacted


def test_what_is_said_for_pip_is_told_to_uv() -> None:
    told = index_environment(
        {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": "https://user:secret@index.example/simple",
            "PIP_FIND_LINKS": "/one /two",
            "PIP_CERT": "/ca.pem",
        }
    )

    assert told == {
        "UV_DEFAULT_INDEX": "https://user:secret@index.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "SSL_CERT_FILE": "/ca.pem",
    }


def test_what_is_said_for_uv_wins() -> None:
    told = index_environment(
        {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": "https://pip.example",
            "UV_INDEX_URL": "https://uv.example",
        }
    )

    assert told == {"UV_INDEX_URL": "https://uv.example"}


def test_files_of_pip_are_read_and_its_variables_win(tmp_path: Path) -> None:
    config = tmp_path / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.write_text(
        "[global]\nindex-url = https://file.example\nextra-index-url =\n    https://a\n    https://b\n"
    )
    home = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}

    from_file = index_environment({**home, "PIP_NO_INDEX": ""})
    overridden = index_environment({**home, "PIP_INDEX_URL": "https://variable.example"})

    assert from_file["UV_DEFAULT_INDEX"] == "https://file.example"
    assert from_file["UV_INDEX"] == "https://a https://b"
    assert from_file["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert overridden["UV_DEFAULT_INDEX"] == "https://variable.example"


def test_nothing_else_of_the_environment_goes_along() -> None:
    told = index_environment(
        {
            "PIP_CONFIG_FILE": "/dev/null",
            "OPENAI_API_KEY": "secret",
            "PATH": "/evil",
            "UV_NO_BINARY": "1",
            "UV_CONFIG_FILE": "/evil.toml",
            "PYTHONPATH": "/evil",
            "LD_PRELOAD": "/evil.so",
        }
    )

    assert told == {}


def test_passwords_are_taken_out_of_messages() -> None:
    assert redacted("at https://user:secret@index.example/simple/") == (
        "at https://index.example/simple/"
    )
