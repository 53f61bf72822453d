import socket

import anyio
import pytest

from assay.sandbox.docker.container import ContainerStream, Demultiplexer


def framed(kind: int, payload: bytes) -> bytes:
    return bytes((kind, 0, 0, 0)) + len(payload).to_bytes(4, "big") + payload


def test_output_and_complaints_come_apart() -> None:
    frames = Demultiplexer()

    frames.feed(framed(1, b"one") + framed(2, b"oh no") + framed(1, b"two"))

    assert list(frames.output) == [b"one", b"two"]
    assert frames.complaints == b"oh no"


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9])
def test_frames_may_come_in_pieces(size: int) -> None:
    frames = Demultiplexer()
    sent = framed(1, b"x" * 20) + framed(1, b"") + framed(1, b"y")

    for begin in range(0, len(sent), size):
        frames.feed(sent[begin : begin + size])

    assert b"".join(frames.output) == b"x" * 20 + b"y"


@pytest.mark.parametrize("kind", [0, 3, 72])
def test_what_no_engine_sends_ends_the_stream(kind: int) -> None:
    with pytest.raises(anyio.BrokenResourceError):
        Demultiplexer().feed(framed(kind, b"HTTP"))


def test_a_frame_of_gigabytes_is_not_waited_for() -> None:
    with pytest.raises(anyio.BrokenResourceError):
        Demultiplexer().feed(b"\x01\0\0\0\xff\xff\xff\xff")


def test_only_the_end_of_complaints_is_kept() -> None:
    frames = Demultiplexer()

    for _ in range(10):
        frames.feed(framed(2, b"z" * 1000))
    frames.feed(framed(2, b"last words"))

    assert len(frames.complaints) <= 4000
    assert frames.complaints.endswith(b"last words")


async def test_a_stream_reads_writes_and_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - the standard library's signature
    stream = ContainerStream(ours)
    with theirs, anyio.fail_after(60):
        theirs.sendall(framed(1, b"answer"))
        assert await stream.receive(3) == b"ans"
        assert await stream.receive() == b"wer"

        await stream.send(b"question")
        assert theirs.recv(100) == b"question"

        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
    await stream.aclose()


async def test_closing_wakes_whoever_waits() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003
    stream = ContainerStream(ours)
    woken = anyio.Event()

    async def wait() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()
        woken.set()

    with theirs, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()
            await woken.wait()
