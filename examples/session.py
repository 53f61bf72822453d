"""A session: variables persist, a figure is returned as an image, a timeout loses only one cell.

python examples/session.py
"""

import anyio

import assay

DRAW = """
import matplotlib.pyplot as plt
plt.plot(squares);
"""


async def main() -> None:
    async with assay.open_sandbox() as sandbox, sandbox.open_interpreter() as session:
        await session.run_cell("squares = [n * n for n in range(10)]")
        result = await session.run_cell("sum(squares)")
        print("the sum is", result.outputs[0].text)

        figure = await session.run_cell(DRAW)
        for output in figure.outputs:
            print("a figure of", len(output.forms["image/png"]), "bytes")

        endless = await session.run_cell("squares = []\nwhile True: pass", timeout_s=0.5)
        print("the cell was", endless.execution.reason.value, "and", endless.state)

        async with session.branch() as other:
            await other.run_cell("squares.append('only here')")
        result = await session.run_cell("len(squares)")
        print("squares still holds", result.outputs[0].text, "numbers")


if __name__ == "__main__":
    anyio.run(main)
