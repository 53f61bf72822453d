"""The display of a chat session. Nothing untrusted reaches the terminal unescaped.

Pictures are shown in kitty's, iTerm's or sixel format, or as a file name. They come from a sandbox
and are not decoded here. Kitty and iTerm get the file itself; the sandbox converts it to sixels,
which are shown only if they contain nothing else.
"""

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.rule import Rule
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.text import Text

from assay.cli.render.text import last_lines, one_line, plain
from assay.contracts.chat import (
    CellEnded,
    CellOutputDelta,
    CellStarted,
    ChatEvent,
    FileLoaded,
    ModelChosen,
    PackagesAdded,
    ReplyDelta,
    StateRebuilt,
    StateRestoring,
    StoredArtifact,
    ToolUsed,
    TurnEnded,
    TurnStarted,
    TurnUndone,
)
from assay.contracts.errors import AssayError
from assay.contracts.execution import PythonCode
from assay.contracts.ports import Sandbox

_TAIL: Final = 12
"""Lines of a reply or an output that are shown while it arrives."""
_OUTPUT_LINES: Final = 40
_PER_SECOND: Final = 8

ShowFigure = Callable[[StoredArtifact], None]


class ChatView:
    """A live display of chat events. Close it after every turn, also after an error."""

    def __init__(self, console: Console, folder: Path, show_figure: ShowFigure) -> None:
        self._console = console
        self._folder = folder
        self._show_figure = show_figure
        self._live: Live | None = None
        self._arriving = ""
        self._doing = ""
        self._restoring = False
        self._interrupted = ""
        """The activity that was shown before cells had to run again."""

    def __call__(self, event: ChatEvent) -> None:
        match event:
            case TurnStarted():
                self._begin("thinking")
            case ReplyDelta() | CellOutputDelta():
                self._arriving += event.text
                if self._live is not None:
                    lines = last_lines(self._arriving, _TAIL)
                    tail = Text("\n".join(lines), style="dim", overflow="ellipsis")
                    self._live.update(Group(tail, _spinner(self._doing)))
            case CellStarted():
                code = Syntax(
                    plain(event.code),
                    "python",
                    theme="ansi_dark",
                    background_color="default",
                    word_wrap=True,
                )
                self._print(
                    *_thought(event.thought), Padding(code, (0, 0, 0, 2)), *_thought(event.remark)
                )
                self._begin("running")
            case StateRestoring():
                self._restore(event)
            case CellEnded():
                lines = last_lines(event.observation, _OUTPUT_LINES)
                body = Text("\n".join(lines), style="red" if event.failed else "")
                took = Text(f"  {event.duration_s:.1f} s", style="dim")
                self._print(Padding(body, (0, 0, 0, 4)), took)
                for artifact in event.artifacts:
                    self._mention(artifact)
                self._begin("thinking")
            case ToolUsed():
                call = Text(f"  {event.tool} {one_line(event.arguments)}", style="cyan")
                style = "red" if event.failed else "dim"
                answer = Text("    " + one_line(event.answer, 400), style=style)
                self._print(*_thought(event.thought), call, answer)
                self._begin("thinking")
            case TurnEnded():
                text = plain(event.text)
                answered = event.status == "answered"
                body = Markdown(text) if answered else Text(text, style="yellow")
                self._print(body, Rule(style="dim"))
            case StateRebuilt():
                doing = self._interrupted
                self._print(Text(_sentence(event), style="dim"))
                if doing:
                    self._begin(doing)
            case FileLoaded() | PackagesAdded() | ModelChosen() | TurnUndone():
                self._console.print(Text(_sentence(event), style="dim"))

    def close(self) -> None:
        """Remove what is shown only temporarily."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._arriving = ""
        self._restoring = False

    def _restore(self, event: StateRestoring) -> None:
        """Show which cell runs again, in place of the current activity."""
        doing = f"restoring cell {event.cell} of {event.cells}"
        if self._restoring and self._live is not None:
            self._live.update(_spinner(doing))
            return
        if not self._restoring:
            self._interrupted = self._doing if self._live is not None else ""
        self._begin(doing)
        self._restoring = True

    def _begin(self, doing: str) -> None:
        self.close()
        self._doing = doing
        if self._console.is_terminal:
            self._live = Live(
                _spinner(doing),
                console=self._console,
                transient=True,
                refresh_per_second=_PER_SECOND,
            )
            self._live.start()

    def _print(self, *parts: RenderableType) -> None:
        self.close()
        for part in parts:
            self._console.print(part)

    def _mention(self, artifact: StoredArtifact) -> None:
        if artifact.source == "figure":
            self._show_figure(artifact)
        if artifact.source != "table":
            place = self._folder / artifact.name
            self._console.print(
                Text(f"    {artifact.source}: {place}", style="dim"), soft_wrap=True
            )


def _spinner(doing: str) -> Spinner:
    return Spinner("dots", text=Text(doing, style="dim"))


def _thought(thought: str) -> list[RenderableType]:
    return [Markdown(plain(thought))] if thought else []


def _sentence(
    event: FileLoaded | StateRebuilt | PackagesAdded | ModelChosen | TurnUndone,
) -> str:
    match event:
        case FileLoaded():
            return f"{one_line(event.path)} is in the workspace.\n{plain(event.about)}"
        case StateRebuilt():
            cells = "1 cell was" if event.cells == 1 else f"{event.cells} cells were"
            again = f"{cells} run again to restore its variables"
            failed = f"; {event.failed} of them fail now" if event.failed else ""
            return f"The interpreter was restarted ({event.why}): {again}{failed}."
        case PackagesAdded():
            return f"Cells can import {one_line(', '.join(event.packages), 400)}."
        case ModelChosen():
            return f"{one_line(event.model)} answers."
        case TurnUndone():
            return f"Turn {event.turn} was undone."


Graphics = Literal["kitty", "iterm", "sixel", "file"]

_CHUNK: Final = 4096
_ONLY_SIXELS: Final = re.compile(rb'\x1bP[0-9;]*q(?:"[0-9;]*)?[0-9;!#$?-~-]*\x1b\\')
_TO_SIXELS: Final = """
import sys
import numpy as np
from PIL import Image

picture = Image.open(sys.argv[1]).convert("RGB")
picture.thumbnail((800, 600))
small = picture.quantize(64)
pixels = np.asarray(small)
palette = small.getpalette()
height, width = pixels.shape
out = ["\\x1bP0;1q", f'"1;1;{width};{height}']
for number in np.unique(pixels):
    red, green, blue = (round(part * 100 / 255) for part in palette[3 * number : 3 * number + 3])
    out.append(f"#{number};2;{red};{green};{blue}")
for top in range(0, height, 6):
    band = pixels[top : top + 6]
    for number in np.unique(band):
        bits = np.zeros(width, dtype=int)
        for row in range(band.shape[0]):
            bits |= (band[row] == number).astype(int) << row
        line, start = [f"#{number}"], 0
        while start < width:
            end = start
            while end < width and bits[end] == bits[start]:
                end += 1
            letter = chr(63 + int(bits[start]))
            line.append(letter * (end - start) if end - start < 4 else f"!{end - start}{letter}")
            start = end
        out.append("".join(line) + "$")
    out.append("-")
out.append("\\x1b\\\\")
sys.stdout.write("".join(out))
"""


def kitty(png: bytes) -> Iterator[bytes]:
    """Yield the escape sequences that show a PNG in kitty."""
    text = base64.b64encode(png)
    pieces = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    for number, piece in enumerate(pieces):
        first = b"a=T,f=100," if number == 0 else b""
        more = b"0" if number == len(pieces) - 1 else b"1"
        yield b"\x1b_G" + first + b"m=" + more + b";" + piece + b"\x1b\\"


def iterm(png: bytes) -> Iterator[bytes]:
    """Yield the escape sequence that shows a picture in iTerm."""
    size = str(len(png)).encode()
    yield b"\x1b]1337;File=inline=1;size=" + size + b":" + base64.b64encode(png) + b"\x07"


async def sixel(png: bytes, sandbox: Sandbox) -> bytes | None:
    """Return the sequence that shows a picture in a terminal with sixels; None if there is none."""
    path = PurePosixPath(".assay-figure.png")
    try:
        await sandbox.write_file(path, png)
        program = PythonCode(source=_TO_SIXELS.encode(), args=(str(path),), timeout_s=20.0)
        result = await sandbox.run(program)
        await sandbox.remove_path(path)
    except AssayError:
        return None
    made = result.stdout_bytes
    return made if result.succeeded and _ONLY_SIXELS.fullmatch(made) else None
