"""Layers that arrive from another side: complete, once, within limits, and never trusted."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import PolicyError, UsageError, WorkspaceFullError
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.rpc.layer_manifest import Manifest, check_manifest, digest_of, read_manifest
from assay.sandbox.rpc.layer_store import LayerStore
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import MessageError

FILE, FOLDER, LINK = pb.FILE_KIND_FILE, pb.FILE_KIND_DIRECTORY, pb.FILE_KIND_SYMLINK


def file_of(path: str, content: bytes = b"content", *, executable: bool = False) -> pb.LayerEntry:
    return pb.LayerEntry(
        path=path.encode(),
        kind=FILE,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).digest(),
        executable=executable,
    )


def folder_of(path: str) -> pb.LayerEntry:
    return pb.LayerEntry(path=path.encode(), kind=FOLDER)


def link_of(path: str, target: str) -> pb.LayerEntry:
    return pb.LayerEntry(path=path.encode(), kind=LINK, target=target.encode())


def allow_all(path: PurePosixPath, content: bytes) -> None:
    del path, content


def store_in(parent: Path, *, most_mb: int = 10) -> LayerStore:
    return LayerStore(most_mb << 20, allow_all, parent=parent)


async def none_more() -> AsyncIterator[pb.PutBlobsRequest]:
    return
    yield


async def put(store: LayerStore, layer: bytes, content: bytes, *, claimed: bytes = b"") -> None:
    sha256 = claimed or hashlib.sha256(content).digest()
    await store.put(pb.PutBlobsRequest(layer=layer, sha256=sha256, content=content), none_more())


@pytest.mark.parametrize(
    "entries",
    [
        [file_of("/etc/passwd")],
        [file_of("../up")],
        [folder_of("a"), file_of("a/../../up")],
        [file_of("a/b")],
        [file_of("a"), file_of("a/b")],
        [link_of("a", "/etc"), file_of("a/passwd")],
        [file_of("a"), file_of("a")],
        [folder_of("a"), file_of("a//b")],
        [file_of("")],
        [file_of(".")],
        [file_of("nul\0")],
        [file_of("x" * 256)],
        [link_of("a", "")],
        [pb.LayerEntry(path=b"a", kind=FILE, sha256=b"short")],
        [pb.LayerEntry(path=b"a", kind=pb.FILE_KIND_OTHER)],
        [pb.LayerEntry(path=b"a")],
    ],
    ids=lambda entries: str(entries[-1].path)[:20],
)
def test_impossible_entries_are_rejected(entries: list[pb.LayerEntry]) -> None:
    with pytest.raises(MessageError):
        check_manifest(digest_of(entries), entries)


def test_a_wrong_digest_is_rejected() -> None:
    with pytest.raises(MessageError, match="digest"):
        check_manifest(b"0" * 32, [file_of("a")])


def test_a_manifest_survives_the_way(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "caf\udce9\n").write_bytes(b"odd")
    (tmp_path / "folder.txt").write_bytes(b"")
    (tmp_path / "link").symlink_to("./folder/../nowhere")
    manifest = read_manifest(WorkspaceLayer("0" * 64, tmp_path))

    assert check_manifest(manifest.digest, manifest.entries) == manifest
    assert [entry.target for entry in manifest.entries if entry.kind == LINK] == [
        b"./folder/../nowhere"
    ]


async def test_a_layer_is_complete_when_its_contents_have_arrived(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    entries = [folder_of("a"), file_of("a/one"), file_of("a/tool", executable=True), file_of("b")]
    digest = digest_of(entries)

    assert not (await store.offer(digest, [])).complete
    answer = await store.offer(digest, entries)
    assert list(answer.missing) == [hashlib.sha256(b"content").digest()]
    with pytest.raises(UsageError):
        async with store.held(digest):
            pass
    await put(store, digest, b"content")

    assert (await store.offer(digest, [])).complete
    async with store.held(digest) as layer:
        assert (layer.folder / "a" / "tool").read_bytes() == b"content"
        assert (layer.folder / "a" / "tool").stat().st_mode & 0o777 == 0o755
        assert (layer.folder / "b").stat().st_mode & 0o777 == 0o644
    await store.close()
    assert not layer.folder.exists()


async def test_contents_of_other_layers_do_not_travel_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    first, second = [file_of("a")], [file_of("b"), file_of("c", b"new")]
    await store.offer(digest_of(first), first)
    await put(store, digest_of(first), b"content")

    answer = await store.offer(digest_of(second), second)

    assert list(answer.missing) == [hashlib.sha256(b"new").digest()]


async def test_a_content_with_another_digest_is_rejected(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    entries = [file_of("a")]
    await store.offer(digest_of(entries), entries)

    for content in (b"CONTENT", b"short", b"far too long"):
        claimed = hashlib.sha256(b"content").digest()
        with pytest.raises(MessageError):
            await put(store, digest_of(entries), content, claimed=claimed)
    with pytest.raises(MessageError, match="no file"):
        await put(store, digest_of(entries), b"foreign")
    assert not (await store.offer(digest_of(entries), [])).complete


async def test_a_wrong_size_is_rejected(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    entry = file_of("a")
    entry.size_bytes = 1000
    await store.offer(digest_of([entry]), [entry])

    with pytest.raises(MessageError, match="bytes"):
        await put(store, digest_of([entry]), b"content")


async def test_a_layer_larger_than_the_store_is_rejected(tmp_path: Path) -> None:
    store = store_in(tmp_path, most_mb=1)
    entry = file_of("a")
    entry.size_bytes = 2 << 20

    with pytest.raises(WorkspaceFullError):
        await store.offer(digest_of([entry]), [entry])


async def test_the_least_recently_used_layers_are_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path, most_mb=1)
    layers = [[file_of(f"{number}", bytes(300_000))] for number in range(4)]
    digests = [digest_of(entries) for entries in layers]
    for digest, entries in zip(digests[:3], layers[:3], strict=True):
        if not (await store.offer(digest, entries)).complete:
            await put(store, digest, bytes(300_000))

    async with store.held(digests[0]):
        await store.offer(digests[3], layers[3])

    known = [(await store.offer(digest, [])).complete for digest in digests]
    assert known == [True, False, True, True]


async def test_no_layer_in_use_is_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path, most_mb=1)
    first, second = [file_of("a", bytes(600_000))], [file_of("b", bytes(700_000))]
    await store.offer(digest_of(first), first)
    await put(store, digest_of(first), bytes(600_000))

    async with store.held(digest_of(first)):
        with pytest.raises(WorkspaceFullError):
            await store.offer(digest_of(second), second)


async def test_a_policy_sees_each_name_of_a_content(tmp_path: Path) -> None:
    def reject_code(path: PurePosixPath, content: bytes) -> None:
        if path.suffix == ".py":
            raise PolicyError(f"{path} of {len(content)} bytes")

    store = LayerStore(10 << 20, reject_code, parent=tmp_path)
    harmless, code = [file_of("a.txt")], [file_of("a.py")]
    await store.offer(digest_of(harmless), harmless)
    await put(store, digest_of(harmless), b"content")

    with pytest.raises(PolicyError):
        await store.offer(digest_of(code), code)


async def test_an_empty_layer_is_complete(tmp_path: Path) -> None:
    manifest = Manifest(digest_of(()), ())

    assert (await store_in(tmp_path).offer(manifest.digest, [])).complete
