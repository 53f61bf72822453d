from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.storage.read_workspace import included_paths, read_workspace
from assay.storage.withheld_files import secret_by_content, secret_by_name

# Made up, and in halves, so that no scanner of this repository takes them for real.
BODY = "MIIEowIBAAKCAQEAq7BFUpkGp3yLGQhQ1Zb7tX0vD2sKcWn5uJ4oRrEaYhMiTf8g"
PEM = f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{BODY}\n"
TOKEN = "ghp_" + "9fK2mQ7xLr4TzW8bNc3VyH6sJd1PgE5uAo0R"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", "sub/.env.production", "prod.env", "id_rsa", ".ssh/id_ed25519"),
        *("server.key", "cert.pem", ".netrc", ".npmrc", ".pypirc", "credentials.json"),
        *("id_rsa_work", "id_ed25519.bak", ".s3cfg", "rclone.conf"),
        *("google-credentials.json", ".vault_pass", ".dev.vars"),
        *("deploy/kubeconfig", "secrets.yaml", "terraform.tfstate", ".docker/config.json"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert secret_by_name(PurePosixPath(name), folder=False)


@pytest.mark.parametrize(
    "name",
    ["id_rsa_work.pub", "valid_rsa.py",
     ".env.example", ".env.sample", "id_rsa.pub", "env.py", "credentials.py", "config.json",
     "keys.py", "environment", "secrets.py", "credentials.example.json"],
)  # fmt: skip
def test_names_of_ordinary_files(name: str) -> None:
    assert not secret_by_name(PurePosixPath(name), folder=False)


@pytest.mark.parametrize("name", [".aws", "home/.ssh", ".config/gcloud", ".kube"])
def test_names_of_folders_with_secrets(name: str) -> None:
    assert secret_by_name(PurePosixPath(name), folder=True)


@pytest.mark.parametrize(
    "text",
    [PEM, f"key = '''{PEM}'''", PEM.replace("\n", "\\n"), f"token = '{TOKEN}'", TOKEN,
     "e2b_" + "4c81d0a7f2e95b3c6d18a0f7e2b94c5d3e6f1a08",
     "sk-" + "4c81d0a7f2e95b3c6d18a0f7e2b94c5d",
     "aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzq8Lm0TnVa",
     "    client-key-data: " + BODY,
     "//registry.example/:_authToken=" + "9fK2mQ7xLr4TzW8bNc3VyH6s",
     "machine git.example login bob password " + "9fK2mQ7xLr",
     '{"auths": {"registry.example": {"auth": "' + 'Ym9iOjlmSzJtUTd4THI0VHpX"}}}',
     '{"type": "service_account", "private_key": "' + PEM.replace("\n", "\\n") + '"}'],
)  # fmt: skip
def test_secrets_by_content(text: str) -> None:
    assert secret_by_content(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "if line.startswith('-----BEGIN PRIVATE " + "KEY-----'):",
        "ghp_" + "x" * 36,
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789",
        "-----BEGIN CERTIFICATE-----\n" + BODY,
        "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
        "aws_secret_access_key=" + "x" * 40,
        "//registry.example/:_authToken=${NPM_TOKEN}",
        "machine learning login page password reset",
        "client-key-data: REDACTED",
        'auth = {"auths": {"host": {"auth": token}}}',
        "def test_password(): assert check(password='correct horse battery')",
    ],
)
def test_markers_and_placeholders_are_no_secrets(text: str) -> None:
    assert not secret_by_content(text.encode())


PASSWORD = "kT7" + "mQ2xLr4TzW8b"
CONFIGURED = [
    ("config.json", f'{{"db": {{"password": "{PASSWORD}"}}}}'),
    ("app.yaml", f"api_key: {PASSWORD * 2}"),
    ("app.toml", f'secret_key = "{PASSWORD * 2}"'),
    ("notes.txt", f"DB_PASSWORD={PASSWORD}"),
    ("setup.ini", f"[db]\npassword = {PASSWORD}"),
    ("admin.conf", f"user:\n  token: {PASSWORD * 2}"),
    ("deploy/Dockerfile", f"ENV SERVICE_TOKEN={PASSWORD * 2}"),
    ("settings.yml", f"url: postgres://bob:{PASSWORD}@db.internal/x"),
    ("pip.conf", f"index-url = https://bob:{PASSWORD}@index.internal/simple"),
    ("appsettings.json", f'"Default": "Server=s;Password={PASSWORD};"'),
    ("key.txt", "api_key = 4c81d0a7f2e95b3c6d18a0f7e2b94c5d"),
]
ORDINARY = [
    ("words.json", '{"password": "Mot de passe", "token": "Jeton"}'),
    ("app.yaml", "password: ${DB_PASSWORD}\ntoken: <your token>\nsecretName: tls-prod-2026"),
    ("app.toml", 'secret_key = "change-me-in-Production-1"'),
    ("page.json", f'{{"nextPageToken": "{PASSWORD * 2}", "csrf_token": "{PASSWORD * 2}"}}'),
    ("compose.yaml", "url: postgres://postgres:postgres@db:5432/x"),
    ("package-lock.json", f'"integrity": "sha512-{PASSWORD * 5}=="'),
    ("tokenizer.json", '{"pad_token": "<|endOfText2|>", "token_type": "A1b2C3d4E5f6"}'),
    ("public.json", f'{{"public_key": "{PASSWORD * 2}", "sort_key": "{PASSWORD * 2}"}}'),
    ("client.py", f"def login(password='{PASSWORD}'): ..."),
    ("data.txt", f"\0password={PASSWORD}"),
]


@pytest.mark.parametrize(("name", "text"), CONFIGURED)
def test_values_of_configuration_that_are_secrets(name: str, text: str) -> None:
    assert secret_by_content(text.encode(), PurePosixPath(name))
    assert secret_by_content(text.encode("utf-16"), PurePosixPath(name))


@pytest.mark.parametrize(("name", "text"), ORDINARY)
def test_values_that_are_no_secrets(name: str, text: str) -> None:
    assert not secret_by_content(text.encode(), PurePosixPath(name))


def test_ignored_files_and_secrets_are_withheld_and_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            ".gitignore": "secret.json\nout/\n*.log\n",
            "sub/.gitignore": "!keep.log\n",
            "secret.json": "{}",
            "out/deep/made.txt": "",
            "a.log": "",
            "sub/keep.log": "",
            ".env": "A=1",
            ".env.example": "A=",
            ".aws/credentials": "x",
            "tests/key.txt": PEM,
            "tests/ca.pem": "-----BEGIN CERTIFICATE-----\n" + BODY,
            "main.py": "",
        },
    )

    tree = read_workspace(tmp_path)

    assert {str(one): one.why for one in tree.withheld} == {
        ".aws/": "named like a file with secrets",
        ".env": "named like a file with secrets",
        "a.log": "ignored by git",
        "out/": "ignored by git",
        "secret.json": "ignored by git",
        "tests/key.txt": "holds a private key",
    }
    assert {str(path) for path in tree.files} == {
        *(".gitignore", "sub/.gitignore", "sub/keep.log", ".env.example"),
        *("tests/ca.pem", "main.py"),
    }
    assert tree.why_withheld(PurePosixPath("out/new.txt"))
    assert not tree.why_withheld(PurePosixPath(".env/x"))


def test_what_is_included_is_read(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "out/\n.env", "out/a/b.txt": "", "out/c.txt": "", ".env": ""})

    include = included_paths(tmp_path, (".env", "out/a"))
    tree = read_workspace(tmp_path, include=include)

    assert {str(path) for path in tree.files} == {".env", ".gitignore", "out/a/b.txt"}
    assert [str(one) for one in tree.withheld] == ["out/c.txt"]
    with pytest.raises(UsageError, match="--include 'none' names nothing"):
        included_paths(tmp_path, ("none",))


def test_what_git_tracks_is_read_though_it_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "gen/\n", "gen/tracked.py": "", "gen/other.py": ""})
    name = b"gen/tracked.py"
    entry = bytes(60) + len(name).to_bytes(2) + name
    padded = entry + bytes(8 - len(entry) % 8)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\1" + padded)

    tree = read_workspace(tmp_path)

    assert {str(path) for path in tree.files} == {".gitignore", "gen/tracked.py"}
    assert [str(one) for one in tree.withheld] == ["gen/other.py"]


def test_a_file_that_is_too_large_is_no_error_where_it_is_withheld(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "big"})
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 30)

    assert [str(one) for one in read_workspace(tmp_path).withheld] == ["big"]
