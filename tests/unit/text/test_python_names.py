"""Names are followed through imports, aliases and lookups, strictly or loosely."""

import ast

import pytest

from assay.text.python_names import Names


def called_in(source: str, *, loose: bool = False) -> frozenset[str]:
    """Return what the last call of a program may call."""
    names = Names(ast.parse(source), loose=loose)
    node, scope = [(node, scope) for node, scope in names.nodes if isinstance(node, ast.Call)][-1]
    assert isinstance(node, ast.Call)
    return names.meant_by(node.func, scope)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "from os import _exit as leave\nleave(0)",
        "import os\nleave = os._exit\nleave(0)",
        "import os\nos.__dict__['_exit'](0)",
    ],
)
def test_a_name_is_followed_to_its_function(source: str) -> None:
    assert called_in(source) == {"os._exit"}


def test_a_parameter_hides_an_import_only_from_a_strict_reading() -> None:
    source = "import os\ndef f(os): os._exit(0)"

    assert called_in(source) == frozenset()
    assert called_in(source, loose=True) == {"os._exit"}


def test_an_unknown_name_stands_for_itself_only_in_a_loose_reading() -> None:
    assert called_in("leave(0)") == frozenset()
    assert called_in("leave(0)", loose=True) == {"leave"}


def test_nodes_come_in_the_order_of_a_walk() -> None:
    tree = ast.parse("def f(a=1):\n    return [b for b in a]\nclass C(f): x = 1\n")

    assert [node for node, _ in Names(tree).nodes] == list(ast.walk(tree))
