"""An MCP server that behaves as it is told to, started as a program: `python FILE`."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("foreign", log_level="ERROR")


@server.tool()
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@server.tool(name="Hang-Up")
def hang() -> str:
    """Never answer."""
    time.sleep(600)  # noqa: TID251 - that is the point
    return ""


@server.tool()
def flood() -> str:
    """Answer with far too much."""
    return "x" * 3_000_000


@server.tool()
def die() -> str:
    """Go away."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("inside")


@server.tool()
def environment() -> list[str]:
    """Name the variables there are."""
    return sorted(os.environ)  # noqa: TID251 - to be looked at from outside


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit("no licence found")
    server.run()
