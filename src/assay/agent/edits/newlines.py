"""Text files with LF line ends, and the line ends, BOM and last newline to restore."""

from dataclasses import dataclass

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """A file's text with LF line ends and a final LF, and the data to write it back."""

    text: str
    ends: tuple[str, ...]
    """The file's line end for each LF of `text`."""
    bom: bool
    final_newline: bool

    @classmethod
    def read(cls, content: bytes) -> "FileText | None":
        """Return the text of a file; None if it is not UTF-8."""
        try:
            raw = content.decode()
        except UnicodeDecodeError:
            return None
        bom = raw.startswith(_BOM)
        raw = raw.removeprefix(_BOM)
        final_newline = raw.endswith("\n") or not raw
        pieces = raw.split("\n")
        ends = tuple("\r\n" if piece.endswith("\r") else "\n" for piece in pieces[:-1])
        text = plain_ends(raw)
        if not final_newline:
            text, ends = text + "\n", (*ends, _usual(ends))
        return cls(text=text, ends=ends, bom=bom, final_newline=final_newline)

    def with_part(self, start: int, end: int, replacement: str) -> "FileText":
        """Return a copy with one part replaced; lines outside that part keep their line ends."""
        before = self.text.count("\n", 0, start)
        inside = self.text.count("\n", start, end)
        kept, gone, rest = (
            self.ends[:before],
            self.ends[before : before + inside],
            self.ends[before + inside :],
        )
        usual = _usual(gone or self.ends)
        return FileText(
            text=self.text[:start] + replacement + self.text[end:],
            ends=(*kept, *([usual] * replacement.count("\n")), *rest),
            bom=self.bom,
            final_newline=self.final_newline,
        )

    def with_text(self, text: str) -> "FileText":
        """Return a rewritten file with the line ends and BOM of this one."""
        plain = plain_ends(text.removeprefix(_BOM))
        final_newline = plain.endswith("\n") or not plain
        plain = plain if final_newline else plain + "\n"
        ends = (_usual(self.ends),) * plain.count("\n")
        return FileText(text=plain, ends=ends, bom=self.bom, final_newline=final_newline)

    def to_bytes(self) -> bytes:
        """Return the file's content.

        Raises:
            UnicodeEncodeError: If the text has lone surrogates.
        """
        lines = self.text.split("\n")
        whole = "".join(line + end for line, end in zip(lines, (*self.ends, ""), strict=True))
        if not self.final_newline:
            whole = whole.removesuffix("\n").removesuffix("\r")
        return ((_BOM if self.bom else "") + whole).encode()


def plain_ends(text: str) -> str:
    """Return a text with LF line ends."""
    return text.replace("\r\n", "\n")


def _usual(ends: tuple[str, ...]) -> str:
    return "\r\n" if 2 * ends.count("\r\n") > len(ends) else "\n"
