"""Scan the changed files for suspicious code.

A scan is no proof: certain cases are forgeries, all others doubts. Code that the original file
already had belongs to the user. Files in languages other than Python are only searched for
patterns, so every match is a doubt. This includes reading files: code can open the test files
that hold canaries while it runs, and no audit hook shows which files it opens.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.verdict import Finding, TamperKind
from assay.contracts.workspace import Tree, changes_between
from assay.verify import python_rules
from assay.verify.discovery import is_test_file, parse_module
from assay.verify.python_rules import Say

_Sign = tuple[TamperKind, str, re.Pattern[str]]


def _sign(kind: TamperKind, said: str, pattern: str) -> _Sign:
    return kind, said, re.compile(pattern)


_READS: Final = "reads files when it runs, which may be the tests"
_REPORTS: Final = "says what only a report of tests says"


_JAVASCRIPT: Final = (
    _sign(
        TamperKind.READS_TESTS,
        _READS,
        r"\b(?:readFile|openSync|readSync|createReadStream|readdir|opendir|globSync)"
        r"|\bfs(?:\s*\.\s*promises|p)?\s*\.\s*(?:open|glob)\b"
        r"""|['"`][^'"`\s]*[._-](?:test|spec)(?:\.[cm]?[jt]sx?)?['"`]""",
    ),
    _sign(TamperKind.FORGED_REPORT, _REPORTS, r"\bnumTotalTests\b|\bassertionResults\b"),
    _sign(
        TamperKind.PATCHED_RUNNER,
        "reaches for the test runner",
        r"""['"](?:node:test|node:vm|vm|inspector|node:inspector)['"]"""
        r"|\bexpect\s*\.\s*extend\b|jest-matchers|\bjest\s*\.\s*\w"
        r"|\bassert\s*(?:\.\s*\w+|\[[^\]]*\])+\s*=(?![=>])",
    ),
    _sign(
        TamperKind.HIDDEN_CODE,
        "changes what a module is, or makes code from text",
        r"\bModule\s*\.\s*_|\brequire\s*\.\s*cache\b|\bprocess\s*\.\s*(?:binding|dlopen)\b"
        r"|\beval\s*\(|\bnew\s+Function\s*\(|\bmodule\s*\.\s*(?:constructor|children|parent)\b",
    ),
    _sign(
        TamperKind.DETECTS_VERIFIER,
        "looks whether it is being tested",
        r"\bNODE_TEST_CONTEXT\b|\bJEST_WORKER_ID\b|\bNODE_ENV\b[^\n]*\btest\b",
    ),
)
_GO: Final = (
    _sign(
        TamperKind.READS_TESTS,
        _READS,
        r"\b(?:os|ioutil|syscall|fs)\.(?:ReadFile|Open|OpenFile|ReadDir|DirFS|Glob|WalkDir)\b"
        r"|\bfilepath\.(?:Glob|Walk|WalkDir)\b|//go:embed|_test\.go\b",
    ),
    _sign(
        TamperKind.FORGED_REPORT, _REPORTS, r"--- (?:PASS|FAIL|SKIP)|=== (?:RUN|PAUSE|CONT|NAME)"
    ),
    _sign(
        TamperKind.PATCHED_RUNNER,
        "reaches for the test runner, or around the language",
        r'^\s*(?:import\s+)?(?:\w+\s+)?"(?:testing|unsafe|C|plugin|runtime/debug)"|//go:linkname',
    ),
)
_RUST: Final = (
    _sign(
        TamperKind.READS_TESTS,
        _READS,
        r"\bfs::(?:read|File|OpenOptions|\{)|\bFile::(?:open|options)\b|\bOpenOptions::|\bread_dir\b"
        r"|\binclude(?:_str|_bytes)?!",
    ),
    _sign(TamperKind.FORGED_REPORT, _REPORTS, r'"type\\?"\s*:\s*\\?"(?:test|suite)\b'),
    _sign(
        TamperKind.PATCHED_RUNNER,
        "reaches around the language, or changes what a failure does",
        r"\bset_hook\b|#\[\s*(?:no_mangle|export_name|link_section)|\basm!|\bRUST_TEST|\bmacro_export\b",
    ),
)
_JVM: Final = (
    _sign(
        TamperKind.READS_TESTS,
        _READS,
        r"\bFiles\s*\.\s*(?:read|lines|list|walk|find|newInput|newBufferedReader|newDir|newByteCh)"
        r"|\bFile(?:Reader|InputStream|Channel)\b|\bRandomAccessFile\b|\blistFiles\s*\("
        r"|\bScanner\s*\(\s*new\s+File\b|\.readText\s*\(|\.readLines\s*\(",
    ),
    _sign(TamperKind.FORGED_REPORT, _REPORTS, r"<testsuite|<testcase"),
    _sign(
        TamperKind.PATCHED_RUNNER,
        "reaches for the test runner, or around the language",
        r"\borg\.(?:junit|opentest4j|assertj)\b|\bsun\.misc\.Unsafe\b|\bjava\.lang\.instrument\b",
    ),
)
_NATIVE: Final = (
    _sign(
        TamperKind.READS_TESTS,
        _READS,
        r"\bifstream\b|\bfstream\s+\w|\b(?:f|fd|fre)open\s*\(|\bopen(?:at|dir)?\s*\(\s*[\"A-Z]"
        r"|\bmmap\s*\(|\bdirectory_iterator\b|\bbasic_filebuf\b|\bfilebuf\b"
        r'|#\s*(?:include|embed)\s*"[^"]*test',
    ),
    _sign(TamperKind.FORGED_REPORT, _REPORTS, r"<testsuite|<testcase|<TestCase|\[ +OK \]"),
    _sign(
        TamperKind.PATCHED_RUNNER,
        "reaches around the language, or stands in for the test framework",
        r"\bconstructor\s*\)\s*\)|\bLD_PRELOAD\b|\bdlsym\b|\bmprotect\b|\bptrace\b|\b__?asm__?\b"
        r"|#\s*define\s+(?:assert|TEST|EXPECT|CHECK|REQUIRE|ASSERT|SECTION)",
    ),
)
_SIGNS: Final[dict[str, tuple[_Sign, ...]]] = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".mts", ".cts"), _JAVASCRIPT),
    ".go": _GO,
    ".rs": _RUST,
    **dict.fromkeys((".java", ".kt"), _JVM),
    **dict.fromkeys((".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp"), _NATIVE),
}


def signs_in(path: PurePosixPath, text: str) -> Iterator[tuple[TamperKind, str, int]]:
    """Yield the suspicious operations of a file, with their lines."""
    for kind, said, pattern in _SIGNS.get(path.suffix, ()):
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                yield kind, said, number
                break


def read_proposal(
    pristine: Tree, judged: Tree, protected: Iterable[PurePosixPath]
) -> tuple[Finding, ...]:
    """Return the suspicious code in changed files."""
    # Code may need the other protected files, such as data.
    tests = [path for path in protected if is_test_file(path) or path.name == "conftest.py"]
    names = frozenset(name for path in tests for name in (path.name, path.stem))
    findings: list[Finding] = []
    for change in changes_between(pristine, judged):
        if change.kind == "deleted":
            continue
        module = parse_module(judged, change.path)
        if module is None:
            findings += _unreadable(change.path, judged.files[change.path].content)
            findings += _foreign(change.path, pristine, judged)
            continue
        known = _Reader(path=change.path, tests=names)
        before = parse_module(pristine, change.path)
        old = {(f.kind, f.explanation) for f in (known.read(before) if before else ())}
        found = dict.fromkeys(known.read(module))
        findings += [f for f in found if (f.kind, f.explanation) not in old]
    return tuple(findings)


def _foreign(path: PurePosixPath, pristine: Tree, judged: Tree) -> Iterator[Finding]:
    old = {(kind, said) for kind, said, _ in signs_in(path, pristine.text(path) or "")}
    for kind, said, line in signs_in(path, judged.text(path) or ""):
        if (kind, said) not in old:
            explanation = f"{path} {said}"
            yield Finding(
                kind=kind, severity="doubt", explanation=explanation, path=path, line=line
            )


def attributable(pristine: Tree, judged: Tree, seen: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that changed files caused and their original versions did not."""
    kept: list[Finding] = []
    for finding in seen:
        path = finding.path
        if path is not None and path in pristine.files:
            before = parse_module(pristine, path)
            old = _Reader(path=path, tests=frozenset()).read(before) if before else ()
            same = pristine.files[path] == judged.files.get(path)
            if same or finding.kind in {f.kind for f in old}:
                continue
        kept.append(finding)
    return tuple(kept)


def _unreadable(path: PurePosixPath, content: bytes) -> tuple[Finding, ...]:
    if path.suffix not in python_rules.CODE:
        return ()
    try:
        if path.suffix == ".py":
            ast.parse(content)
    except SyntaxError:
        # Python cannot run the file either, unless it declares an encoding.
        if _decodes(content):
            return ()
    except (ValueError, RecursionError, MemoryError):
        pass
    said = f"{path} holds code that cannot be read"
    return (Finding(kind=TamperKind.HIDDEN_CODE, severity="doubt", explanation=said, path=path),)


def _decodes(content: bytes) -> bool:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        content.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    path: PurePosixPath
    tests: frozenset[str]

    def read(self, module: ast.Module) -> Iterator[Finding]:
        names = _Names(module)
        # `sys.modules[...]` and `.get(...)` are checked by the name that they look up.
        narrow = {n.value for n in ast.walk(module) if isinstance(n, ast.Subscript | ast.Attribute)}
        narrow |= {c for n in ast.walk(module) if isinstance(n, ast.Compare) for c in n.comparators}
        top = frozenset(_run_on_import(module))
        for node in ast.walk(module):
            said_of = [*self._of(node, names, imported=node in top)]
            if isinstance(node, ast.Attribute | ast.Name) and node not in narrow:
                said_of += _all_modules(node, names)
            for kind, severity, said in said_of:
                yield Finding(
                    kind=kind,
                    severity=severity,
                    explanation=f"{self.path} {said}",
                    path=self.path,
                    line=getattr(node, "lineno", None),
                )

    def _of(self, node: ast.AST, names: "_Names", *, imported: bool) -> Iterator[Say]:
        match node:
            case ast.Call():
                yield from _known_call(names.full(node.func), imported=imported)
                yield from self._hidden_call(node, names.full(node.func))
                yield from self._reaching_call(node, names, imported=imported)
                yield from _shape(node)
            case ast.Import() | ast.ImportFrom():
                yield from self._import(node)
            case ast.Raise(exc=ast.Name() | ast.Attribute() as raised):
                yield from _known_call(names.full(raised), imported=False)
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _assignment(target, names, imported=imported)
            case ast.AugAssign(target=target):
                yield from _assignment(target, names, imported=imported)
            case ast.Subscript() | ast.Compare():
                yield from _lookup(node, names)
            case _:
                yield from _shape(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Say]:
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        )
        for name in modules:
            top = name.partition(".")[0]
            if top in python_rules.RUNNERS and name.partition(".")[2] != "mock":
                yield (TamperKind.PATCHED_RUNNER, "doubt", f"imports the test runner: {top}")
                return
            if top == "ctypes":
                yield (TamperKind.HIDDEN_CODE, "doubt", "imports ctypes, which can change anything")
                return
            if name.rpartition(".")[2] in self.tests or name in self.tests:
                yield (TamperKind.READS_TESTS, "forgery", f"imports the tests: {name}")
                return
            if name in {"__main__", "builtins._"}:
                yield (TamperKind.DETECTS_VERIFIER, "doubt", "imports the program that runs it")

    def _hidden_call(self, node: ast.Call, name: str) -> Iterator[Say]:
        if (
            name in python_rules.RUNNING
            and node.args
            and not isinstance(node.args[0], ast.Constant)
        ):
            yield (TamperKind.HIDDEN_CODE, "doubt", f"runs code that is built at run time: {name}")
        if name in {"__import__", "importlib.import_module"} and node.args:
            yield from self._computed_import(node.args[0])
        if name in python_rules.LOADERS or (name == "pickle.loads" and _is_constant(node.args)):
            yield (TamperKind.HIDDEN_CODE, "doubt", f"makes code from what cannot be read: {name}")
        if name == "getattr" and len(node.args) > 1:
            yield from _computed_attribute(node.args[1])

    def _reaching_call(self, node: ast.Call, names: "_Names", *, imported: bool) -> Iterator[Say]:
        name = names.full(node.func)
        if name in {"setattr", "delattr"} and node.args and imported:
            target = names.full(node.args[0]).partition(".")[0]
            if target in names.foreign:
                yield _patching(target)
        if name in {"os.getenv", "os.environ.get"} and node.args:
            yield from _variable(node.args[0])
        if name in {"sys.modules.get", "sys.modules.pop", "importlib.util.find_spec"} and node.args:
            yield from _loaded(node.args[0])
        for constant in _texts(node):
            yield from self._file(constant, name)

    def _computed_import(self, argument: ast.expr) -> Iterator[Say]:
        if not isinstance(argument, ast.Constant):
            yield (TamperKind.HIDDEN_CODE, "doubt", "imports a module by a name that is computed")
            return
        top = str(argument.value).partition(".")[0]
        if top in python_rules.RUNNERS:
            yield (TamperKind.PATCHED_RUNNER, "doubt", f"imports the test runner: {top}")
        elif str(argument.value).rpartition(".")[2] in self.tests:
            yield (TamperKind.READS_TESTS, "forgery", f"imports the tests: {argument.value}")

    def _file(self, text: str, called: str) -> Iterator[Say]:
        last = text.rpartition("/")[2]
        if last in self.tests and last.endswith(".py"):
            yield (TamperKind.READS_TESTS, "forgery", f"names the test file {text}")
        elif any(word in text for word in python_rules.REPORTS) and called.endswith(
            ("open", "Path", "write_text", "write_bytes")
        ):
            yield (TamperKind.FORGED_REPORT, "forgery", f"names the report or configuration {text}")


class _Names:
    """The objects that the names of a module refer to, as far as its imports show."""

    def __init__(self, module: ast.Module) -> None:
        self._known: dict[str, str] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._known[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.foreign = frozenset(name.partition(".")[0] for name in self._known.values())

    def full(self, node: ast.AST) -> str:
        match node:
            case ast.Name(id=name):
                return self._known.get(name, name)
            case ast.Attribute(value=value, attr=name):
                owner = self.full(value)
                return f"{owner}.{name}" if owner else ""
            case _:
                return ""


def _known_call(name: str, *, imported: bool) -> Iterator[Say]:
    for table in (python_rules.CALLS, python_rules.AT_IMPORT if imported else {}):
        if name in table:
            kind, severity, said = table[name]
            yield (kind, severity, f"{said}: {name}")


def _shape(node: ast.AST) -> Iterator[Say]:
    match node:
        case ast.FunctionDef(name="__eq__" | "__ne__" | "__bool__" | "__contains__"):
            yield from _always(node)
        case ast.Attribute(attr=name) if name in python_rules.INNER:
            yield (TamperKind.DETECTS_VERIFIER, "doubt", f"reaches through {name}")
        case ast.Constant(value=str(text)) if text in python_rules.TOLD_BY_PYTEST:
            yield (TamperKind.DETECTS_VERIFIER, "forgery", f"looks for {text}")
        case ast.Constant(value=str(text)) if text in python_rules.INNER:
            yield (TamperKind.DETECTS_VERIFIER, "doubt", f"reaches through {text}")
        case ast.BinOp() | ast.Call() if _pieces(node) in python_rules.SECRET:
            yield (
                TamperKind.HIDDEN_CODE,
                "doubt",
                f"puts the name {_pieces(node)} together from pieces",
            )
        case _:
            pass


def _pieces(node: ast.AST) -> str:
    """The text that constants add up to; empty if it cannot be computed from constants."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _pieces(left), _pieces(right)
            return first + second if first and second else ""
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
            args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
        ):
            return between.join(_pieces(part) for part in parts)
        case _:
            return ""


def _run_on_import(module: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that run on import: not in functions, not below `__main__`."""
    waiting: list[ast.AST] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def _assignment(target: ast.expr, names: _Names, *, imported: bool) -> Iterator[Say]:
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return
    full = names.full(target.value)
    top = full.partition(".")[0]
    if top in python_rules.RUNNERS or full in python_rules.EVERYONES:
        yield (TamperKind.PATCHED_RUNNER, "forgery", f"changes {full} for everyone")
    elif not imported or isinstance(target, ast.Subscript):
        return
    elif full == "sys" and target.attr in python_rules.STREAMS:
        yield (TamperKind.PATCHED_RUNNER, "doubt", f"replaces sys.{target.attr}")
    elif full != "sys" and top in names.foreign:
        yield _patching(full)


def _patching(name: str) -> Say:
    return (TamperKind.PATCHED_RUNNER, "doubt", f"changes the module {name} when imported")


def _lookup(node: ast.AST, names: _Names) -> Iterator[Say]:
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            if names.full(value) == "os.environ":
                yield from _variable(ast.Constant(value=key))
            if names.full(value) == "sys.modules":
                yield from _loaded(node.slice)
        case ast.Compare(left=left, comparators=[right, *_]):
            if names.full(right) == "sys.modules":
                yield from _loaded(left)
            yield from _clock(left, right, names)
        case _:
            pass


def _is_constant(nodes: list[ast.expr]) -> bool:
    return bool(nodes) and isinstance(nodes[0], ast.Constant)


def _computed_attribute(node: ast.expr) -> Iterator[Say]:
    """Names assembled from pieces hide their target; a literal prefix does not."""
    match node:
        case ast.Constant() | ast.Name() | ast.Attribute() | ast.Subscript():
            return
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            pass
        case ast.BinOp(left=ast.Constant(value=str(start)), right=right):
            start = "" if isinstance(right, ast.Constant) else start
        case ast.Call(func=ast.Attribute(attr="lower" | "upper" | "replace" | "strip")):
            return
        case _:
            start = ""
    if len(start) < python_rules.VISIBLE or start.startswith("_"):
        yield (
            TamperKind.HIDDEN_CODE,
            "doubt",
            "reaches for an attribute by a name that is computed",
        )


def _all_modules(node: ast.expr, names: _Names) -> Iterator[Say]:
    full = names.full(node)
    if full in {"sys.modules.values", "sys.modules.items", "sys.modules"}:
        yield (TamperKind.DETECTS_VERIFIER, "doubt", "goes through all loaded modules")


def _loaded(node: ast.expr) -> Iterator[Say]:
    if isinstance(node, ast.Constant) and str(node.value).partition(".")[0] in python_rules.RUNNERS:
        yield (TamperKind.DETECTS_VERIFIER, "forgery", f"looks whether {node.value} is loaded")


def _clock(left: ast.expr, right: ast.expr, names: _Names) -> Iterator[Say]:
    for now, then in ((left, right), (right, left)):
        reads = [names.full(n.func) for n in ast.walk(now) if isinstance(n, ast.Call)]
        fixed = any(isinstance(n, ast.Constant) and isinstance(n.value, int | str)
                    for n in ast.walk(then))  # fmt: skip
        if fixed and any(name.endswith(python_rules.NOW) for name in reads):
            yield (TamperKind.DETECTS_VERIFIER, "doubt", "behaves by the date")
            return


def _variable(node: ast.expr) -> Iterator[Say]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value
        if name == "CI" or name.startswith(python_rules.TEST_VARIABLES[:-1]):
            yield (TamperKind.DETECTS_VERIFIER, "forgery", f"reads the variable {name}")


def _always(node: ast.FunctionDef) -> Iterator[Say]:
    body = [part for part in node.body if not isinstance(part, ast.Expr)]
    match body:
        case [ast.Return(value=ast.Constant(value=bool(answer)))]:
            if (node.name == "__ne__") != answer:
                yield (
                    TamperKind.PATCHED_RUNNER,
                    "doubt",
                    f"defines {node.name} that always says {answer}",
                )
        case _:
            pass


def _texts(node: ast.Call) -> Iterator[str]:
    for argument in (*node.args, node.func):
        for inner in ast.walk(argument):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.value
