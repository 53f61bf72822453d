"""Requirements for rich output of a cell: values, tables, pictures, the exception."""

import json

from assay.contracts.execution import CellError, CellResult, RichOutput
from assay.contracts.ports import Interpreter
from assay.selftest.checks import requirement
from assay.selftest.programs import describe_cell, run_in, value_in

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 32 << 20
"""The limit of a cell's rich output."""


def _only(result: CellResult) -> RichOutput:
    assert len(result.outputs) == 1, describe_cell(result)
    return result.outputs[0]


async def _error_of(interpreter: Interpreter, source: str) -> CellError:
    result = await interpreter.run_cell(source)
    assert result.error is not None, describe_cell(result)
    return result.error


async def _has(interpreter: Interpreter, module: str) -> bool:
    """Return whether a library is installed: its rich output is required only then."""
    found = await value_in(
        interpreter, f"import importlib.util\nimportlib.util.find_spec({module!r}) is not None"
    )
    return found == "True"


@requirement
async def the_value_of_the_last_expression_is_shown(interpreter: Interpreter) -> None:
    result = await run_in(interpreter, "x = 20\nx + 1\nx * 2 + 2")

    assert _only(result).kind == "value", describe_cell(result)
    assert _only(result).text == "42", describe_cell(result)
    assert await value_in(interpreter, "_ + 1") == "43"


@requirement
async def nothing_is_shown_for_none_statements_and_semicolons(interpreter: Interpreter) -> None:
    for source in ("None", "x = 1", "x;", "x ;  # quiet", "print('out')", "", "# nothing"):
        result = await run_in(interpreter, source)

        assert result.outputs == (), f"{source!r}: {describe_cell(result)}"


@requirement
async def a_semicolon_in_a_string_shows_the_value(interpreter: Interpreter) -> None:
    assert await value_in(interpreter, "'a;'") == "'a;'"


@requirement
async def displayed_values_arrive_in_order_while_a_cell_runs(interpreter: Interpreter) -> None:
    result = await run_in(interpreter, "for n in (1, 2):\n    display(n)\ndisplay(3, 4)\n5")

    shown = [(output.kind, output.text) for output in result.outputs]
    assert shown == [
        *(("display", str(number)) for number in (1, 2, 3, 4)),
        ("value", "5"),
    ], describe_cell(result)


@requirement
async def objects_are_shown_in_all_their_mime_types(interpreter: Interpreter) -> None:
    source = """
        class Shown:
            def __repr__(self): return "plain"
            def _repr_html_(self): return "<b>html</b>"
            def _repr_png_(self): return b"png"
            def _repr_svg_(self): return "<svg/>"
            def _repr_markdown_(self): return "**md**"
            def _repr_latex_(self): return "$x$"
            def _repr_json_(self): return {"a": [1]}
        Shown()
    """
    forms = dict(_only(await run_in(interpreter, source)).forms)

    assert json.loads(forms.pop("application/json")) == {"a": [1]}
    assert forms == {
        "text/plain": b"plain",
        "text/html": b"<b>html</b>",
        "image/png": b"png",
        "image/svg+xml": b"<svg/>",
        "text/markdown": b"**md**",
        "text/latex": b"$x$",
    }


@requirement
async def a_failing_repr_method_does_not_fail_the_cell(interpreter: Interpreter) -> None:
    source = """
        class Broken:
            def __repr__(self): raise RuntimeError("no")
            def _repr_html_(self): raise ValueError("no")
            def _repr_png_(self): return 5
            def _repr_markdown_(self): return "fine"
            def _repr_mimebundle_(self, **kwargs): raise KeyError
        Broken()
    """
    output = _only(await run_in(interpreter, source))

    assert "Broken" in output.text
    assert output.forms["text/markdown"] == b"fine"
    assert not {"text/html", "image/png"} & output.forms.keys()


@requirement
async def data_is_shown_as_json_too(interpreter: Interpreter) -> None:
    output = _only(await run_in(interpreter, "{'a': [1, None, 'é']}"))
    other = _only(await run_in(interpreter, "{'a': {1, 2}}"))

    assert json.loads(output.forms["application/json"]) == {"a": [1, None, "é"]}
    assert "application/json" not in other.forms


@requirement
async def long_text_is_truncated_and_large_representations_are_dropped(
    interpreter: Interpreter,
) -> None:
    source = """
        class Large:
            def __repr__(self): return "x" * (1 << 20)
            def _repr_html_(self): return "y" * (40 << 20)
        Large()
    """
    output = _only(await run_in(interpreter, source))

    assert output.dropped == ("text/html",), str(output.dropped)
    assert output.text.startswith("xxx")
    assert len(output.text) < 1 << 20
    assert "1048576 characters" in output.text[-40:]


@requirement
async def a_cell_that_displays_too_much_returns_part_of_it(interpreter: Interpreter) -> None:
    source = "for n in range(2000):\n    display('z' * 60000)"
    result = await run_in(interpreter, source)

    total = sum(len(form) for output in result.outputs for form in output.forms.values())
    assert 0 < total <= _MOST_BYTES, f"{total} bytes"
    assert len(result.outputs) < 2000
    assert await value_in(interpreter, "n") == "1999"


@requirement
async def a_traceback_shows_lines_of_this_and_earlier_cells(interpreter: Interpreter) -> None:
    await run_in(interpreter, "def divide(n):\n    return n / 0  # the guilty line")
    error = await _error_of(interpreter, "x = 1\ndivide(x)")
    text = "\n".join(error.traceback)

    assert (error.name, error.message) == ("ZeroDivisionError", "division by zero")
    assert "divide(x)" in text, text
    assert "# the guilty line" in text, text
    frames = [line for line in error.traceback if line.startswith("  File ")]
    assert len(frames) == 2, text


@requirement
async def a_traceback_leaves_out_frames_of_libraries(interpreter: Interpreter) -> None:
    error = await _error_of(interpreter, "import json\njson.loads('nothing')")
    text = "\n".join(error.traceback)

    assert error.name == "JSONDecodeError", text
    assert len([line for line in error.traceback if line.startswith("  File ")]) == 1, text
    assert "json.loads('nothing')" in text, text


@requirement
async def both_of_two_chained_exceptions_are_shown(interpreter: Interpreter) -> None:
    source = (
        "try:\n    {}['key']\nexcept KeyError as error:\n    raise ValueError('bad') from error"
    )
    error = await _error_of(interpreter, source)
    text = "\n".join(error.traceback)

    assert error.name == "ValueError", text
    assert "KeyError: 'key'" in text, text
    assert "direct cause" in text, text


@requirement
async def a_syntax_error_is_marked_in_its_line(interpreter: Interpreter) -> None:
    error = await _error_of(interpreter, "x = 1\nif x\n    pass\n")

    assert error.name == "SyntaxError", str(error)
    place = error.traceback.index("    if x")
    assert error.traceback[place + 1].strip() == "^", str(error)


@requirement
async def exceptions_without_a_working_repr_are_shown(interpreter: Interpreter) -> None:
    source = """
        class Odd(Exception):
            def __str__(self): raise RuntimeError
        raise Odd
    """
    deep = "def f():\n    f()\nf()"
    result = await interpreter.run_cell(source.replace("\n        ", "\n"))
    endless = await _error_of(interpreter, deep)

    assert result.error is not None, describe_cell(result)
    assert result.error.name == "Odd", describe_cell(result)
    assert endless.name == "RecursionError"
    assert len(endless.traceback) < 500
    assert await value_in(interpreter, "6 * 7") == "42"


@requirement
async def a_cell_may_await(interpreter: Interpreter) -> None:
    source = "import asyncio\nasync def six():\n    await asyncio.sleep(0.01)\n    return 6\n"
    assert await value_in(interpreter, source + "await six() * 7") == "42"
    assert await value_in(interpreter, "await asyncio.gather(six(), six())") == "[6, 6]"


@requirement
async def a_table_is_shown_as_text_and_as_html(interpreter: Interpreter) -> None:
    if not await _has(interpreter, "pandas"):
        return
    await run_in(interpreter, "import pandas as pd\ntable = pd.DataFrame({'n': range(10_000)})")
    output = _only(await run_in(interpreter, "table"))

    assert "10000 rows" in output.text, output.text
    assert b"<table" in output.forms["text/html"]
    assert len(output.forms["text/html"]) < 1 << 20


@requirement
async def figures_are_shown_without_being_saved(interpreter: Interpreter) -> None:
    draw = "import matplotlib.pyplot as plt\n_ = plt.figure(figsize=(1, 1))\nplt.plot([1, 2]);"
    if not await _has(interpreter, "matplotlib"):
        return
    left_open = await run_in(interpreter, draw)
    shown = await run_in(interpreter, f"{draw}\nplt.show()\nprint(len(plt.get_fignums()))")

    for result in (left_open, shown):
        output = _only(result)
        assert output.kind == "display", describe_cell(result)
        assert output.forms["image/png"].startswith(_PNG), describe_cell(result)
    assert shown.execution.stdout == "0\n", describe_cell(shown)
