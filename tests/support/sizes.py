"""Print how long the functions are: `python -m tests.support.sizes`."""

import statistics
import sys

from tests.support.sources import functions, modules


def describe_sizes() -> str:
    """Return the median and the longest function, in one line."""
    found = [function for module in modules() for function in functions(module)]
    longest = max(found, key=lambda function: function.lines)
    median = statistics.median(function.lines for function in found)
    return (
        f"{len(found)} functions in {len(modules())} modules; lines: median {median:g}, "
        f"maximum {longest.lines} ({longest.place})"
    )


if __name__ == "__main__":
    sys.stdout.write(describe_sizes() + "\n")
