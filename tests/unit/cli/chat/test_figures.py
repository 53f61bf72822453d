import base64

from assay.cli.chat import view
from assay.contracts.execution import ExecutionResult, Program
from tests.doubles.fake_sandbox import FakeSandbox, answer_with

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


def test_kitty_is_given_the_whole_file_in_pieces() -> None:
    sequences = list(view.kitty(PNG))
    assert len(sequences) > 1
    assert sequences[0].startswith(b"\x1b_Ga=T,f=100,m=1;")
    assert sequences[-1].startswith(b"\x1b_Gm=0;")
    text = b"".join(each.split(b";", 1)[1].removesuffix(b"\x1b\\") for each in sequences)
    assert base64.b64decode(text) == PNG


def test_iterm_is_given_the_whole_file_at_once() -> None:
    (sequence,) = view.iterm(PNG)
    head, _, rest = sequence.partition(b":")
    assert head == b"\x1b]1337;File=inline=1;size=" + str(len(PNG)).encode()
    assert base64.b64decode(rest.removesuffix(b"\x07")) == PNG


async def test_sixels_are_made_in_the_sandbox_and_nothing_else_is_let_through() -> None:
    made = '\x1bP0;1q"1;1;2;6#0;2;0;0;0#0~~$-\x1b\\'

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del program, sandbox
        return answer_with(made)

    assert await view.sixel(PNG, FakeSandbox(answer=answer)) == made.encode()


async def test_what_is_no_sixel_is_dropped() -> None:
    for planted in ("\x1b]0;title\x07", "\x1bP0;1q\x1b[2J\x1b\\", "text", ""):

        def answer(program: Program, sandbox: FakeSandbox, text: str = planted) -> ExecutionResult:
            del program, sandbox
            return answer_with(text)

        assert await view.sixel(PNG, FakeSandbox(answer=answer)) is None


async def test_the_picture_does_not_stay_in_the_workspace() -> None:
    sandbox = FakeSandbox()
    await view.sixel(PNG, sandbox)
    assert not sandbox.files
