"""Sources of canaries and values of inverted tests, which cannot be known in advance."""

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

_pick = random.SystemRandom()

_FIRST = (
    "adds",
    "counts",
    "empty",
    "finds",
    "handles",
    "keeps",
    "large",
    "mixed",
    "order",
    "reads",
)
_SECOND = ("again", "all", "case", "first", "input", "items", "last", "pairs", "twice", "values")

PLAIN = (
    "def {name}():\n    assert {small} == {large}\n",
    "def {name}():\n    left = [{small}, {large}]\n    assert sorted(left) == [{large}, {small}]\n",
    "def {name}():\n    assert {{'{word}': {small}}}['{word}'] > {large}\n",
    "def {name}():\n    raise ValueError('{word}')\n",
    "def {name}():\n    int('{word}')\n",
    "def {name}():\n    assert '{word}'.startswith('{other}')\n",
)
WITH_PYTEST = (
    "def {name}():\n    import pytest\n    with pytest.raises(KeyError):\n        str({small})\n",
    "def {name}():\n    import pytest\n    pytest.fail('{word}')\n",
    "def {name}():\n    import pytest\n    assert {small}.5 == pytest.approx({large})\n",
)
METHODS = (
    "def {name}(self):\n    self.assertEqual({small}, {large})\n",
    "def {name}(self):\n    self.assertIn('{word}', ['{other}'])\n",
    "def {name}(self):\n    with self.assertRaises(KeyError):\n        '{word}'.upper()\n",
    "def {name}(self):\n    self.assertTrue({small} > {large})\n",
    "def {name}(self):\n    raise ValueError('{word}')\n",
    "def {name}(self):\n    assert {small} == {large}\n",
    "def {name}(self):\n    self.fail('{word}')\n",
)


class Names:
    """Generate inconspicuous names that no test uses."""

    def __init__(self, taken: "set[str]") -> None:
        self._taken = taken

    def fill(self, template: str, prefix: str = "test_") -> "tuple[str, str]":
        """Return a name and the source that contains it."""
        name = prefix + _pick.choice(_FIRST) + "_" + _pick.choice(_SECOND)
        while name in self._taken:
            name += "_" + _pick.choice(_SECOND)
        self._taken.add(name)
        small = _pick.randrange(2, 500)
        word, other = _pick.sample(_FIRST, 2)
        return name, template.format(
            name=name, small=small, large=small + _pick.randrange(1, 500), word=word, other=other
        )


def same_as(value: Any) -> Any:
    """Return the value unchanged; tests with their original meaning call this."""
    return value


def other_than(value: Any) -> Any:
    """Return another value of this type; for an unknown type, an object that equals nothing."""
    change = _CHANGES.get(value.__class__)
    return (value, ...) if change is None else change(value)


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _pick.random()
    # A large step away from zero, because large numbers hide small steps.
    step = type(value)(_pick.randrange(11, 99))
    return value * 3 + step if value >= 0 else value * 3 - step


def _sequence(value: Any) -> Any:
    # The length stays, which exposes code that compares only lengths.
    first = other_than(value[0]) if value else _pick.random()
    return type(value)([first, *value[1:]])


def _mapping(value: "dict[Any, Any]") -> "dict[Any, Any]":
    changed = dict(value)
    key = next(iter(changed), _pick.random())
    changed[key] = other_than(changed.get(key))
    return changed


def _members(value: Any) -> Any:
    return type(value)([*list(value)[1:], _pick.random()])


_CHANGES: "dict[type, Callable[[Any], Any]]" = {
    bool: lambda value: not value,
    int: _number,
    float: _number,
    complex: lambda value: value + _pick.randrange(11, 99),
    Decimal: _number,
    Fraction: _number,
    str: lambda value: value + _pick.choice("qxz") + str(_pick.randrange(11, 99)),
    bytes: lambda value: value + b"%d" % _pick.randrange(11, 99),
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    set: _members,
    frozenset: _members,
}
