"""Tables in Excel and Parquet files, and the notebooks that conversations are exported to."""

import json
from pathlib import Path

import anyio
import pytest

from assay.cli.chat.commands import write_export
from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
    FileLoaded,
    StoredArtifact,
    TurnEnded,
    TurnStarted,
    history_of,
)
from assay.contracts.execution import Limits
from assay.contracts.messages import Usage
from tests.support.native import open_own, python

ROUND_TRIP = """
import pandas as pd
table = pd.DataFrame({"region": ["north", "süd"], "price": [1.5, 2.5]})
table.to_excel("sales.xlsx", index=False)
table.to_parquet("sales.parquet")
print(pd.read_excel("sales.xlsx").price.sum(), pd.read_parquet("sales.parquet").region[1])
"""
# A program that has the name in its text does not get libraries that were imported without it.
AHEAD = """
import os, sys
import pandas
print("py" "arrow" in sys.modules, len(os.listdir("/proc/self/task")))
"""
ARROW = """
import pandas as pd
print(pd.Series(["a"], dtype="string[pyarrow]").dtype.storage)
"""


async def test_excel_and_parquet_are_read_and_written_in_a_sandbox(tmp_path: Path) -> None:
    async with (
        open_own(tmp_path, preload=(("numpy", "pandas"),)) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):
        # Until the libraries are imported ahead, programs import them themselves.
        with anyio.fail_after(60):
            while (await sandbox.run(python(AHEAD))).stdout != "False 1\n":
                pass
        async with sandbox.open_interpreter() as interpreter:
            table = await interpreter.run_cell(ROUND_TRIP)
            again = await interpreter.run_cell(
                "print(pd.read_parquet('sales.parquet').price.sum())"
            )
            plotted = await interpreter.run_cell(
                "import seaborn\naxes = seaborn.barplot(table, x='region', y='price')"
            )
            glyph = await interpreter.run_cell(
                "axes = seaborn.barplot([1])\naxes.set_title('\\u672c')"
            )
            wide = await interpreter.run_cell("pd.DataFrame({'a': ['\\u672c\\u672c', 'x']})")
        typed = await sandbox.run(python(ARROW))

    assert (table.execution.stdout, table.error) == ("4.0 süd\n", None)
    assert (again.execution.stdout, again.error) == ("4.0\n", None)
    assert any("image/png" in output.forms for output in plotted.outputs)
    assert "Glyph" in glyph.execution.stderr
    assert ".py" not in glyph.execution.stderr
    # A wide character takes two columns, so that row has two characters less.
    _, first, second = wide.outputs[0].text.splitlines()
    assert len(first) == len(second) - 2
    assert (typed.stdout, typed.stderr) == ("pyarrow\n", "")


def _turn(*cells: CellEnded) -> list[ChatEvent]:
    events: list[ChatEvent] = [
        FileLoaded(path="sales.csv", size_bytes=20, about="2 rows"),
        TurnStarted(turn=1, message="Plot the prices."),
    ]
    for cell in cells:
        events.append(
            CellStarted(turn=1, step=cell.step, thought="", code=cell.code, usage=Usage())
        )
        events.append(cell)
    events.append(TurnEnded(turn=1, status="answered", text="There.", usage=Usage()))
    return events


def _cell(step: int, code: str, *, failed: bool = False, kept: bool = True) -> CellEnded:
    return CellEnded(
        turn=1,
        step=step,
        code=code,
        observation="",
        failed=failed,
        kept=kept,
        artifacts=(),
        duration_s=0.1,
    )


def test_an_exported_notebook_runs_in_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "sales.csv").write_text("region,price\nnorth,1\nsouth,3\n")
    events = _turn(
        _cell(1, "sales = pd.read_csv('sales.csv')\nsales"),
        _cell(2, "sales.prize.mean()", failed=True),
        _cell(3, "while True: pass", failed=True, kept=False),
        _cell(4, "print(np.mean(sales.price))\nplt.plot(sales.price)\nplt.show()"),
    )
    write_export(tmp_path / "talk.ipynb", history_of(events), tmp_path)

    notebook = nbformat.read(tmp_path / "talk.ipynb", as_version=4)
    nbformat.validate(notebook)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0].source.startswith("import numpy as np")
    assert "<table" in code[1].outputs[0].data["text/html"]
    assert [output.output_type for output in code[2].outputs] == ["error"]
    assert code[3].outputs[0].text == "2.0\n"
    assert any("image/png" in output.get("data", {}) for output in code[3].outputs)


def test_a_table_stays_a_table_in_an_exported_notebook(tmp_path: Path) -> None:
    html = "<table><tr><td>1</td></tr></table>"
    table = StoredArtifact(
        name="table-1.html", media_type="text/html", size_bytes=34, sha256="", source="table"
    )
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "table-1.html").write_text(html)
    cell = CellEnded(
        turn=1,
        step=1,
        code="sales",
        observation="   a\n0  1\n[table shown]",
        failed=False,
        kept=True,
        artifacts=(table,),
        duration_s=0.1,
    )
    write_export(tmp_path / "talk.ipynb", history_of(_turn(cell)), tmp_path)

    cells = json.loads((tmp_path / "talk.ipynb").read_text())["cells"]
    (code,) = (cell for cell in cells if cell["cell_type"] == "code")
    assert code["outputs"][0]["text"] == "   a\n0  1\n"
    assert code["outputs"][1]["data"] == {"text/html": html}
