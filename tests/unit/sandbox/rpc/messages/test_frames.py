"""Frames come out of a stream as they were put into it, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sandbox.rpc.connection import MAX_FRAME_BYTES, FrameReader, encode
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import MessageError

frames = st.builds(
    lambda call, data, more: pb.Frame(call=call, content=pb.Content(data=data, more=more)),
    call=st.integers(0, 2**64 - 1),
    data=st.binary(max_size=300),
    more=st.booleans(),
)


@given(st.lists(frames, max_size=5), st.integers(1, 50))
def test_frames_survive_any_cut(sent: list[pb.Frame], piece: int) -> None:
    stream = b"".join(map(encode, sent))
    reader = FrameReader()

    received = [
        frame
        for begin in range(0, len(stream), piece)
        for frame in reader.feed(stream[begin : begin + piece])
    ]

    assert received == sent


@given(st.binary(max_size=200))
def test_noise_gives_frames_or_is_refused(noise: bytes) -> None:
    reader = FrameReader()

    try:
        for frame in reader.feed(noise):
            assert frame.WhichOneof("body")
    except MessageError:
        return


def test_a_frame_larger_than_one_may_be_is_refused_before_it_has_come() -> None:
    with pytest.raises(MessageError, match="bytes"):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4)))


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(MessageError):
        list(FrameReader().feed(bytes(4)))
