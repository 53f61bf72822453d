"""Parse XML from untrusted programs: no document types, no entities, limited size.

The standard library's tree parsers expand entities, so a few bytes can become gigabytes. This
parser rejects any document with such declarations.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

_MAX_DEPTH: Final = 64
_MAX_ELEMENTS: Final = 2_000_000
_MAX_TEXT_CHARS: Final = 64_000
"""The maximum for one element; the rest is left out."""
_DECLARATION: Final = re.compile(r"^\s*<\?xml[^>]*\?>")
_NOT_XML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


class UnreadableXmlError(ValueError):
    """The document is not XML, or has an unsupported form."""


@dataclass(slots=True, kw_only=True)
class Element:
    """One element, with the text directly in it."""

    tag: str
    attributes: dict[str, str]
    children: "list[Element]" = field(default_factory=list["Element"])
    text: str = ""

    def find_all(self, tag: str) -> "Iterator[Element]":
        """Yield all descendants with this tag, in order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.find_all(tag)


def read_xml(document: bytes) -> Element:
    """Return the root of a document.

    Raises:
        UnreadableXmlError: If it is malformed, too deep or too large, or has a document type.
    """
    # The declared encoding is ignored: runners write UTF-8, and tests print arbitrary bytes.
    text = _NOT_XML.sub("\ufffd", document.decode("utf-8", errors="replace"))
    builder = _Builder()
    parser = expat.ParserCreate(encoding="utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse_document_type
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.add_text
    try:
        parser.Parse(_DECLARATION.sub("", text).encode(), True)  # noqa: FBT003 - the C function's own form
    except expat.ExpatError as error:
        raise UnreadableXmlError(f"not well-formed: {error}") from error
    return builder.root.children[0]


class _Builder:
    def __init__(self) -> None:
        self.root = Element(tag="", attributes={})
        self._open = [self.root]
        self._elements = 0

    def refuse_document_type(self, *_: object) -> None:
        raise UnreadableXmlError("it has a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) > _MAX_DEPTH or self._elements > _MAX_ELEMENTS:
            raise UnreadableXmlError("it is too deep or too large")
        element = Element(tag=tag, attributes=attributes)
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, tag: str) -> None:
        del tag
        self._open.pop()

    def add_text(self, text: str) -> None:
        element = self._open[-1]
        if len(element.text) < _MAX_TEXT_CHARS:
            element.text += text[:_MAX_TEXT_CHARS]
