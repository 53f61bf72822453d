"""Create values of the same type that are not equal to the original."""

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

_pick = random.SystemRandom()


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
