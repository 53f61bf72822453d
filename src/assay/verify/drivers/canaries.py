"""Sources of canaries, with names and values that cannot be known in advance."""

import random

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
        self._random = random.SystemRandom()

    def fill(self, template: str, prefix: str = "test_") -> "tuple[str, str]":
        """Return a name and the source that contains it."""
        pick = self._random
        name = prefix + pick.choice(_FIRST) + "_" + pick.choice(_SECOND)
        while name in self._taken:
            name += "_" + pick.choice(_SECOND)
        self._taken.add(name)
        small = pick.randrange(2, 500)
        word, other = pick.sample(_FIRST, 2)
        return name, template.format(
            name=name, small=small, large=small + pick.randrange(1, 500), word=word, other=other
        )
