"""The key is made once, by whoever is first, for its owner alone."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.contracts.errors import JournalError, UsageError
from assay.storage.signing_keys import is_signed_by, public_key, signing_key


def test_the_same_key_signs_every_time(tmp_path: Path) -> None:
    first, second = signing_key(tmp_path), signing_key(tmp_path)

    assert first.public == second.public
    assert is_signed_by(second.public, first.sign(b"content"), b"content")
    assert not is_signed_by(second.public, first.sign(b"content"), b"another")


def test_nobody_else_may_read_the_key(tmp_path: Path) -> None:
    signing_key(tmp_path / "state")

    (file,) = (tmp_path / "state" / "keys").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_those_who_ask_at_once_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: signing_key(tmp_path).public, range(32)))

    assert len(set(keys)) == 1
    assert len(list((tmp_path / "keys").iterdir())) == 1


def test_asking_for_the_public_half_makes_no_key(tmp_path: Path) -> None:
    assert public_key(tmp_path) is None
    assert list(tmp_path.iterdir()) == []

    assert signing_key(tmp_path).public == public_key(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_could_read_is_not_used(tmp_path: Path, mode: int) -> None:
    signing_key(tmp_path)
    (file,) = (tmp_path / "keys").iterdir()
    file.chmod(mode)

    with pytest.raises(UsageError, match="not yours alone"):
        signing_key(tmp_path)


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_key_is_named(tmp_path: Path, content: str) -> None:
    signing_key(tmp_path)
    (file,) = (tmp_path / "keys").iterdir()
    file.write_text(content)

    with pytest.raises(JournalError, match=r"ed25519\.pem"):
        signing_key(tmp_path)


@pytest.mark.parametrize("public", ["", "00", "zz" * 32])
def test_what_is_no_key_has_signed_nothing(public: str) -> None:
    assert not is_signed_by(public, "00" * 64, b"")
