"""Stateful runs of `sandbox_run_python`: cells that remember, values, errors, figures."""

import base64
from collections.abc import Generator
from pathlib import Path

import pytest
from mcp import Client

from tests.support.leftovers import remove_engines
from tests.support.mcp_servers import Served, serve, values, words


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder: Path = tmp_path_factory.mktemp("mcp")
    with serve(folder, which="executor") as running:
        yield running
    remove_engines(folder / "runtime")


async def test_cells_remember_and_show_their_last_value(served: Served) -> None:
    async with Client(served.executor) as programs:
        first = values(
            await programs.call_tool(
                "sandbox_run_python", {"code": "x = 40", "stateful": True, "workspace": "new"}
            )
        )
        here = {"workspace": first["workspace"], "stateful": True}
        second = await programs.call_tool("sandbox_run_python", {"code": "x + 2", **here})
        fresh = values(
            await programs.call_tool(
                "sandbox_run_python",
                {"code": "print('x' in dir())", "workspace": first["workspace"]},
            )
        )

    assert (first["cell"], first["state"]) == (1, "kept")
    assert (values(second)["value"], values(second)["cell"]) == ("42", 2)
    assert "42" in words(second)
    assert fresh["stdout"] == "False\n"


async def test_an_exception_a_time_limit_and_a_crash_cost_one_cell(served: Served) -> None:
    async with Client(served.executor) as programs:
        first = values(
            await programs.call_tool("sandbox_run_python", {"code": "x = 1", "stateful": True})
        )
        here = {"workspace": first["workspace"], "stateful": True}
        raised = await programs.call_tool("sandbox_run_python", {"code": "y = 2\n1 / 0", **here})
        slow = values(
            await programs.call_tool(
                "sandbox_run_python",
                {"code": "x = 5\nwhile True: pass", "timeout_s": 0.5, **here},
            )
        )
        crashed = values(
            await programs.call_tool(
                "sandbox_run_python", {"code": "import os; x = 9; os.abort()", **here}
            )
        )
        after = values(await programs.call_tool("sandbox_run_python", {"code": "(x, y)", **here}))

    assert values(raised)["error"]["name"] == "ZeroDivisionError"
    assert "ZeroDivisionError" in words(raised)
    assert (slow["reason"], slow["state"]) == ("timed_out", "rolled_back")
    assert crashed["state"] == "rolled_back"
    assert after["value"] == "(1, 2)"


async def test_figures_come_back_as_images(served: Served) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
    async with Client(served.executor) as programs:
        result = await programs.call_tool(
            "sandbox_run_python", {"code": code, "stateful": True, "timeout_s": 60}
        )

    assert values(result)["images"] == 1, words(result)
    [image] = [block for block in result.content if block.type == "image"]
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data).startswith(b"\x89PNG")
