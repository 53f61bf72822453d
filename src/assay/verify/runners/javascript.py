"""Read JavaScript test files without running them, and add canaries to them."""

import base64
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from assay.verify.canaries import Plan, new_canary_name

SEPARATOR: Final = " > "
_TITLE: Final = re.compile(
    r"[ \t]*(?P<kind>describe|suite|test|it)\(\s*"
    r"""(?P<quote>['"])(?P<title>[^'"\\\n]*)(?P=quote)\s*[,)]"""
)
_MODULE: Final = re.compile(r"^(?:import\s*[\w{*'\"]|export\s)", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)

_ASSERTIONS: Final = {
    # Each of these must throw, in every form of call.
    "ok": "ok(false)",
    "equal": "equal(1, 2)",
    "notEqual": "notEqual(1, 1)",
    "strictEqual": "strictEqual(1, 2)",
    "notStrictEqual": "notStrictEqual(1, 1)",
    "deepEqual": "deepEqual({ a: 1 }, { a: 2 })",
    "notDeepEqual": "notDeepEqual({ a: 1 }, { a: 1 })",
    "deepStrictEqual": "deepStrictEqual({ a: 1 }, { a: 2 })",
    "notDeepStrictEqual": "notDeepStrictEqual({ a: 1 }, { a: 1 })",
    "throws": "throws(() => {})",
    "doesNotThrow": "doesNotThrow(() => { throw new Error('thrown') })",
    "match": "match('a', /b/)",
    "doesNotMatch": "doesNotMatch('a', /a/)",
    "fail": "fail()",
}
_MATCHERS: Final = {
    "toBe": "expect(1).toBe(2)",
    "toEqual": "expect([1]).toEqual([2])",
    "toStrictEqual": "expect([1]).toStrictEqual([2])",
    "toBeTruthy": "expect(false).toBeTruthy()",
    "toBeFalsy": "expect(true).toBeFalsy()",
    "toBeNull": "expect(1).toBeNull()",
    "toBeUndefined": "expect(1).toBeUndefined()",
    "toBeDefined": "expect(undefined).toBeDefined()",
    "toBeNaN": "expect(1).toBeNaN()",
    "toBeGreaterThan": "expect(1).toBeGreaterThan(2)",
    "toBeGreaterThanOrEqual": "expect(1).toBeGreaterThanOrEqual(2)",
    "toBeLessThan": "expect(2).toBeLessThan(1)",
    "toBeLessThanOrEqual": "expect(2).toBeLessThanOrEqual(1)",
    "toBeCloseTo": "expect(1).toBeCloseTo(2)",
    "toBeInstanceOf": "expect(1).toBeInstanceOf(Date)",
    "toContain": "expect([1]).toContain(2)",
    "toContainEqual": "expect([1]).toContainEqual(2)",
    "toHaveLength": "expect([1]).toHaveLength(2)",
    "toHaveProperty": "expect({ a: 1 }).toHaveProperty('b')",
    "toMatch": "expect('a').toMatch(/b/)",
    "toMatchObject": "expect({ a: 1 }).toMatchObject({ a: 2 })",
    "toThrow": "expect(() => {}).toThrow()",
    "toThrowError": "expect(() => {}).toThrow()",
}


def titles_in(text: str) -> frozenset[tuple[str, ...]]:
    """Return the titles of tests that are certainly registered, with those of their groups.

    Only literal titles at the top level or directly in such groups count. A test in a loop or
    condition is not certain. Nesting is read from the indentation, so unusual layouts yield fewer
    titles, never wrong ones.
    """
    found: set[tuple[str, ...]] = set()
    groups: list[tuple[int, str | None]] = []
    in_template = False
    for line in _COMMENT.sub(_blank, text).split("\n"):
        was_in_template = in_template
        in_template ^= line.count("`") % 2 == 1
        if was_in_template or not line.strip():
            continue
        indent = len(line) - len(line.lstrip(" \t"))
        while groups and groups[-1][0] >= indent:
            groups.pop()
        match = _TITLE.match(line)
        path = tuple(title for _, title in groups)
        certain = match is not None and None not in path
        is_group = match is not None and match["kind"] in {"describe", "suite"}
        if match and certain and not is_group:
            found.add((*(title for title in path if title is not None), match["title"]))
        groups.append((indent, match["title"] if match and is_group else None))
    return frozenset(found)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def expected_ids(path: PurePosixPath, text: str) -> Iterator[str]:
    """Yield the IDs that a report on this file must have."""
    for titles in titles_in(text):
        test = SEPARATOR.join((str(path), *titles))
        # IDs are compared up to the first bracket, which starts parameters for other runners.
        if "[" not in test:
            yield test


def is_module(path: PurePosixPath, text: str, *, package_is_module: bool) -> bool:
    """Whether a file is an ECMAScript module, by its name, its package and its first words."""
    if path.suffix in {".mjs", ".mts"}:
        return True
    if path.suffix in {".cjs", ".cts"}:
        return False
    return package_is_module or bool(_MODULE.search(_COMMENT.sub("", text)))


# Locks the assertion functions and records attempts to replace them. Additions are allowed.
_LOCK: Final = (
    "for (const held of [assert, strict, test]) "
    "for (const name of Object.getOwnPropertyNames(held)) { "
    "const own = Object.getOwnPropertyDescriptor(held, name); "
    "if (own.configurable && typeof own.value === 'function') Object.defineProperty(held, name, { "
    "get: () => own.value, set: () => { lock.touched = true; }, enumerable: own.enumerable }); }"
)
_ASKS: Final = ("node:test", "node:assert", "node:assert/strict")


def _locked(text: str, lock: str, *, module: bool) -> str:
    """Put the lock at the start of a test file, without adding a line."""
    if module:
        source = (
            "import test from 'node:test'; import assert from 'node:assert'; "
            "import strict from 'node:assert/strict'; const lock = { touched: false }; "
            f"{_LOCK} export default lock;"
        )
        encoded = base64.b64encode(source.encode()).decode()
        head = f"import {lock} from 'data:text/javascript;base64,{encoded}'; "
    else:
        given = ", ".join(f"require('{name}')" for name in _ASKS)
        head = (
            f"const {lock} = ((test, assert, strict) => {{ const lock = {{ touched: false }}; "
            f"{_LOCK} return lock; }})({given}); "
        )
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        return f"{first}\n{head}{rest}"
    return head + text


def plan_for_node(texts: dict[PurePosixPath, str], *, package_is_module: bool) -> Plan:
    """Plan canaries for files that use `node:test`."""
    files: dict[PurePosixPath, bytes] = {}
    names: set[str] = set()
    for path, text in texts.items():
        lock, *imported = (f"_{new_canary_name()}" for _ in range(4))
        acts = ["throw new Error('planted')", "assert.strictEqual(1, 2)", "strict.equal(1, 2)"]
        # This canary passes, and is therefore detected, if code tried to replace an assertion.
        acts.append(f"if (!{lock}.touched) throw new Error('planted')")
        used = [call for name, call in _ASSERTIONS.items() if re.search(rf"\b{name}\(", text)]
        acts.extend(f"assert.{call}" for call in used)
        acts.extend(f"strict.{call}" for call in used)
        own = {new_canary_name(): act for act in dict.fromkeys(acts)}
        names.update(own)
        planted = "".join(f"  test({name!r}, () => {{ {act}; }});\n" for name, act in own.items())
        module = is_module(path, text, package_is_module=package_is_module)
        if module:
            head = "".join(
                f"import {name} from '{source}';\n"
                for name, source in zip(imported, _ASKS, strict=True)
            )
            given = ", ".join(imported)
        else:
            head = ""
            given = ", ".join(f"require('{name}')" for name in _ASKS)
        addition = f"\n;\n{head};((test, assert, strict) => {{\n{planted}}})({given});\n"
        files[path] = (_locked(text, lock, module=module) + addition).encode()
    return Plan(files=files, names=frozenset(names))


def plan_for_jest(texts: dict[PurePosixPath, str]) -> Plan:
    """Plan canaries for files that use the globals of jest."""
    files: dict[PurePosixPath, bytes] = {}
    names: set[str] = set()
    for path, text in texts.items():
        acts = ["throw new Error('planted')", "expect(1).toBe(2)", "expect([1]).toEqual([2])"]
        acts.extend(act for name, act in _MATCHERS.items() if f".{name}(" in text)
        if ".not." in text:
            acts.append("expect(1).not.toBe(1)")
        own = {new_canary_name(): act for act in dict.fromkeys(acts)}
        names.update(own)
        planted = "".join(f"test({name!r}, () => {{ {act}; }});\n" for name, act in own.items())
        files[path] = f"{text}\n;\n{planted}".encode()
    return Plan(files=files, names=frozenset(names))
