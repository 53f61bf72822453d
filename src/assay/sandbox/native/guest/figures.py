"""Figures of matplotlib as pictures, without a person saving them or calling anything.

matplotlib is told to draw with a backend of ours: the usual one without a screen, whose `show()`
sends the open figures. What a cell leaves open is sent at its end.
"""

import sys
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from io import BytesIO
from typing import Any, Final

_NAME: Final = "assay_figures"
BACKEND: Final = f"module://{_NAME}"


def install(show: Callable[[], None]) -> None:
    """Be the backend that `BACKEND` names, for a matplotlib that may come later, or never."""
    sys.meta_path.append(_Finder(show))
    # For those who choose the usual backend by name; what they leave open is sent all the same.
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.rcParams["backend"] = BACKEND


class _Finder:
    """Makes the backend's module when matplotlib asks for it."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self) if name == _NAME else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        del spec

    def exec_module(self, module: types.ModuleType) -> None:
        # By name: whoever asks for this module has imported matplotlib, and we have not.
        without_screen = import_module("matplotlib.backends.backend_agg")
        module.__dict__["FigureCanvas"] = without_screen.FigureCanvasAgg
        module.__dict__["show"] = self._answer_show

    def _answer_show(self, *_: object, **__: object) -> None:
        self._show()


def take_open() -> Iterator[tuple[str, bytes]]:
    """Give each open figure, in words and as PNG, and close it."""
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
    """Draw a value that is a figure, and close it: it is shown now."""
    library = sys.modules.get("matplotlib.figure")
    if library is None or not isinstance(value, library.Figure):
        return None
    picture = _draw(value)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if picture is not None and pyplot is not None:
        pyplot.close(value)
    return picture


def _draw(figure: Any) -> bytes | None:  # noqa: ANN401 - matplotlib is not ours to import
    if not figure.axes and not figure.get_children()[1:]:
        return None
    drawn = BytesIO()
    with warnings.catch_warnings(record=True) as warned:
        try:
            figure.savefig(drawn, format="png", bbox_inches="tight")
        except Exception as error:  # noqa: BLE001 - a figure that cannot be drawn is said, not raised
            print(f"a figure could not be drawn: {error!r}", file=sys.stderr)  # noqa: T201
            return None
    # Each once, and without the place: it is in this file, which is none of the person's.
    for text in dict.fromkeys(f"{one.category.__name__}: {one.message}" for one in warned):
        print(text, file=sys.stderr)  # noqa: T201
    return drawn.getvalue()
