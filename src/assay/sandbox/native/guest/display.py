"""Rich output of a cell: values in all their formats, figures, and the final exception.

The formats are created in the sandbox, where the objects are, and sent as frames. A frame is the
length of a header, the header in JSON, then the bytes of each format. `host/branch.py` reads them.
Matplotlib uses Assay's backend: the usual one without a screen, but its `show()` sends the open
figures. Figures that a cell leaves open are sent at its end.
"""

import json
import os
import struct
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from io import BytesIO
from typing import Any, Final, Literal, cast

_NAME: Final = "assay_figures"
FIGURE_BACKEND: Final = f"module://{_NAME}"


def install_figure_backend(show: Callable[[], None]) -> None:
    """Provide the backend that `BACKEND` names, in case matplotlib is imported later."""
    sys.meta_path.append(_Finder(show))
    # For users who choose the usual backend by name; their open figures are sent too.
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.rcParams["backend"] = FIGURE_BACKEND


class _Finder:
    """Creates the backend's module when matplotlib imports it."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self) if name == _NAME else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        del spec

    def exec_module(self, module: types.ModuleType) -> None:
        # By name: matplotlib imports this module, but Assay does not import matplotlib.
        without_screen = import_module("matplotlib.backends.backend_agg")
        module.__dict__["FigureCanvas"] = without_screen.FigureCanvasAgg
        module.__dict__["show"] = self._answer_show

    def _answer_show(self, *_: object, **__: object) -> None:
        self._show()


def take_open() -> Iterator[tuple[str, bytes]]:
    """Yield each open figure as text and PNG, and close it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        picture = _draw(figure)
        pyplot.close(figure)
        if picture is not None:
            yield repr(figure), picture


def picture_of(value: object) -> bytes | None:
    """Draw a value that is a figure, and close it, because it is shown now."""
    library = sys.modules.get("matplotlib.figure")
    if library is None or not isinstance(value, library.Figure):
        return None
    picture = _draw(value)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if picture is not None and pyplot is not None:
        pyplot.close(value)
    return picture


def _draw(figure: Any) -> bytes | None:
    if not figure.axes and not figure.get_children()[1:]:
        return None
    drawn = BytesIO()
    with warnings.catch_warnings(record=True) as warned:
        try:
            figure.savefig(drawn, format="png", bbox_inches="tight")
        except Exception as error:  # noqa: BLE001 - a figure that cannot be drawn is reported, not raised
            print(f"a figure could not be drawn: {error!r}", file=sys.stderr)  # noqa: T201
            return None
    # Each warning once and without its location, which is in this file and not in the user's code.
    for text in dict.fromkeys(f"{one.category.__name__}: {one.message}" for one in warned):
        print(text, file=sys.stderr)  # noqa: T201
    return drawn.getvalue()


LARGEST_TEXT: Final = 64 << 10
"""Maximum characters of plain text; longer text is cut off, with a note."""
LARGEST_FORM: Final = 4 << 20
LARGEST_CELL: Final = 12 << 20
"""Maximum bytes of all that one cell shows."""
MOST_SHOWN: Final = 100
HEADER_LENGTH: Final = struct.Struct("!I")

_METHODS: Final = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
_MOST_FORMS: Final = 16
_LONGEST_TYPE: Final = 100
_TABLE_OPTIONS: Final = {
    "display.max_columns": 50,
    "display.width": 120,
    "display.max_colwidth": 80,
    "display.unicode.east_asian_width": True,
}
Forms = dict[str, bytes]


class Display:
    """Sends the rich output of one cell after another."""

    def __init__(self) -> None:
        self._answers = -1
        self._pid = 0
        self._room = 0
        self._shown = self._left_out = 0
        self._turn = threading.Lock()
        self._tables_set = False
        install_figure_backend(self.figures)

    def begin(self, answers: int) -> None:
        """Start a cell, in the process that runs it."""
        self._answers, self._pid = answers, os.getpid()
        self._room, self._shown, self._left_out = LARGEST_CELL, 0, 0
        # A lock that a thread of an earlier cell held would never be released.
        self._turn = threading.Lock()

    def value(self, value: object) -> None:
        self._show("value", value)

    def display(self, *values: object) -> None:
        """Show values immediately, as in a notebook."""
        for value in values:
            self._show("display", value)

    def figures(self) -> None:
        """Show the open figures and close them."""
        for text, picture in take_open():
            self._send_forms("display", {"text/plain": text.encode(), "image/png": picture})

    def error(self, told: Mapping[str, Any]) -> None:
        self._send({"kind": "error", **told}, ())

    def end(self) -> None:
        if self._left_out:
            text = f"… and {self._left_out} more, left out".encode()
            self._send({"kind": "display", "forms": [["text/plain", len(text)]]}, (text,))

    def _show(self, kind: Literal["value", "display"], value: object) -> None:
        if not self._tables_set and "pandas" in sys.modules:
            self._tables_set = True
            _attempt(_set_table_options)
        self._send_forms(kind, _forms_of(value))

    def _send_forms(self, kind: Literal["value", "display"], forms: Forms) -> None:
        if os.getpid() != self._pid:
            return  # a process that a cell started; its output would mix with the cell's
        with self._turn:
            if self._shown == MOST_SHOWN:
                self._left_out += 1
                return
            self._shown += 1
            kept: Forms = {}
            for name, data in forms.items():
                if len(data) <= min(LARGEST_FORM, self._room):
                    self._room -= len(data)
                    kept[name] = data
            header = {
                "kind": kind,
                "forms": [[name, len(data)] for name, data in kept.items()],
                "dropped": [name for name in forms if name not in kept],
            }
            self._send(header, tuple(kept.values()))

    def _send(self, header: Mapping[str, object], forms: tuple[bytes, ...]) -> None:
        text = json.dumps(header).encode()
        rest = memoryview(b"".join((HEADER_LENGTH.pack(len(text)), text, *forms)))
        while rest:
            rest = rest[os.write(self._answers, rest) :]


def _forms_of(value: object) -> Forms:
    forms: Forms = {"text/plain": _plain(value)}
    if isinstance(value, type):
        return forms
    if (picture := picture_of(value)) is not None:
        forms["image/png"] = picture
    _add_bundle(forms, value)
    for method, name in _METHODS:
        if name not in forms:
            _add(forms, name, _ask(value, method))
    if type(value) in (dict, list) and "application/json" not in forms:
        data = _attempt(lambda: _encode_json(value))
        if data is not None:
            forms["application/json"] = data
    return forms


def _plain(value: object) -> bytes:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - shown instead
        text = f"<{type(value).__name__} whose repr() raises {type(error).__name__}>"
    if len(text) > LARGEST_TEXT:
        text = f"{text[:LARGEST_TEXT]}… ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace")


def _add_bundle(forms: Forms, value: object) -> None:
    bundle = _first(_ask(value, "_repr_mimebundle_"))
    if isinstance(bundle, dict):
        for name, form in [*cast("dict[object, object]", bundle).items()][:_MOST_FORMS]:
            if isinstance(name, str) and len(name) <= _LONGEST_TYPE:
                _add(forms, name, form)


def _ask(value: object, method: str) -> object:
    """Call a method that the class defines: an object that answers to every name does not count."""
    if getattr(type(value), method, None) is None:
        return None
    return _attempt(getattr(value, method))


def _first(form: object) -> object:
    """Return a format without the metadata that some objects return with it."""
    if isinstance(form, tuple) and form:
        return cast("tuple[object, ...]", form)[0]
    return cast("object", form)


def _add(forms: Forms, name: str, form: object) -> None:
    form = _first(form)
    if isinstance(form, bytes | bytearray):
        forms[name] = bytes(form)
    elif isinstance(form, str):
        forms[name] = form.encode("utf-8", "backslashreplace")
    elif form is not None and name == "application/json":
        data = _attempt(lambda: _encode_json(form))
        if data is not None:
            forms[name] = data


def _encode_json(value: object) -> bytes:
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(allow_nan=False).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_FORM:
            break  # too large already, so it will be dropped
    return "".join(pieces).encode()


def _attempt(form: Callable[[], Any]) -> Any:
    """Return None if it raises: an error of an object does not fail the cell."""
    try:
        return form()
    except Exception:  # noqa: BLE001 - see above
        return None


def _set_table_options() -> None:
    """Set tables to page width, unless the user has set these options."""
    pandas: Any = sys.modules["pandas"]
    for name, wanted in _TABLE_OPTIONS.items():
        words = pandas.describe_option(name, _print_desc=False).rpartition("[default: ")[2]
        default, _, currently = words.rstrip("]").partition("] [currently: ")
        if default == currently:
            pandas.set_option(name, wanted)
