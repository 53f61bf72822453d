import struct

from hypothesis import given
from hypothesis import strategies as st

from assay.sandbox.network.proxy import Outcome, build_answer, parse_question


def asked(name: bytes, *, kind: int = 1, flags: int = 0x0100, questions: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b"."))
    header = struct.pack("!HHHHHH", 0xABCD, flags, questions, 0, 0, 0)
    return header + labels + b"\0" + struct.pack("!HH", kind, 1)


def test_a_question_is_read() -> None:
    question = parse_question(asked(b"Example.ORG"))

    assert question is not None
    assert (question.number, question.name, question.wants_address) == (0xABCD, "example.org", True)


def test_a_question_for_something_else_than_an_address_is_known_as_such() -> None:
    question = parse_question(asked(b"example.org", kind=28))

    assert question is not None
    assert not question.wants_address


def test_an_answer_repeats_the_question_and_gives_the_address() -> None:
    question = parse_question(asked(b"example.org"))
    assert question is not None

    answer = build_answer(question, Outcome.FOUND, "198.18.0.1")

    assert struct.unpack_from("!HHHH", answer) == (0xABCD, 0x8180, 1, 1)
    assert asked(b"example.org")[12:] in answer
    assert answer.endswith(bytes([198, 18, 0, 1]))


def test_an_answer_without_an_address_says_why() -> None:
    question = parse_question(asked(b"example.org"))
    assert question is not None

    answer = build_answer(question, Outcome.NO_SUCH_NAME)

    assert struct.unpack_from("!HHHH", answer) == (0xABCD, 0x8183, 1, 0)


def test_what_is_no_plain_question_is_not_read() -> None:
    assert parse_question(asked(b"a.org", flags=0x8180)) is None, "an answer"
    assert parse_question(asked(b"a.org", flags=0x2800)) is None, "an update"
    assert parse_question(asked(b"a.org", questions=2)) is None, "two questions"
    assert parse_question(asked(b"a.org")[:-3]) is None, "cut off"
    assert parse_question(asked(b"a")[:12] + b"\xc0\x0c\0\1\0\1") is None, "a pointer to itself"


@given(st.binary(max_size=600))
def test_no_bytes_whatever_break_the_reader(message: bytes) -> None:
    question = parse_question(message)

    assert question is None or build_answer(question, Outcome.FAILED)


@given(st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=4))
def test_whatever_a_name_is_made_of_it_is_text_afterwards(labels: list[bytes]) -> None:
    message = struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0)
    message += b"".join(bytes([len(label)]) + label for label in labels) + b"\0\0\1\0\1"

    question = parse_question(message)

    if question is not None:
        question.name.encode("ascii")
