"""Matplotlib figures as pictures, without any call by the user.

Matplotlib uses Assay's backend: the usual one without a screen, but its `show()` sends the open
figures. Figures that a cell leaves open are sent at its end.
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
    """Provide the backend that `BACKEND` names, in case matplotlib is imported later."""
    sys.meta_path.append(_Finder(show))
    # For users who choose the usual backend by name; their open figures are sent too.
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.rcParams["backend"] = BACKEND


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
