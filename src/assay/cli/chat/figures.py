"""Pictures in a terminal: in kitty's, iTerm's or sixel format, or as a file name.

The picture comes from a sandbox and is not decoded here. Kitty and iTerm get the file itself; the
sandbox converts it to sixels, which are shown only if they contain nothing else.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, Literal

from assay.contracts.errors import AssayError
from assay.contracts.execution import PythonCode
from assay.contracts.ports import Sandbox

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
