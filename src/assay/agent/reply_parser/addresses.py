"""Find the file that a code block belongs to, from the text around it."""

import re
from pathlib import PurePosixPath

from assay.agent.model_paths import tidy_path, why_unusable

_LANGUAGES: dict[str, tuple[str, ...]] = {
    "py": ("python", "py", "python3", "pyi", "pycon"),
    "js": ("javascript", "js", "jsx", "mjs", "cjs", "node", "ecmascript"),
    "ts": ("typescript", "ts", "tsx"),
    "rs": ("rust", "rs"),
    "go": ("go", "golang"),
    "java": ("java",),
    "kt": ("kotlin", "kt"),
    "c": ("c", "h", "cpp", "c++", "cc", "cxx", "hpp", "hh"),
    "cs": ("csharp", "c#", "cs"),
    "rb": ("ruby", "rb"),
    "php": ("php",),
    "swift": ("swift",),
    "json": ("json", "jsonc", "json5"),
    "yaml": ("yaml", "yml"),
    "toml": ("toml",),
    "html": ("html", "htm", "xml", "svg"),
    "css": ("css", "scss", "less"),
    "sql": ("sql",),
    "md": ("markdown", "md", "mdx"),
    "sh": (
        "bash",
        "sh",
        "shell",
        "zsh",
        "console",
        "shell-session",
        "terminal",
        "cmd",
        "powershell",
    ),
    "txt": ("text", "txt", "plaintext", "output", "log", "stdout"),
    "diff": ("diff", "patch", "udiff"),
}
_FAMILY = {name: family for family, names in _LANGUAGES.items() for name in names}
_SUFFIXES = frozenset(_FAMILY) | frozenset(
    {
        *("cfg", "clj", "cmake", "csv", "dart", "env", "ex", "exs", "erl", "gradle", "graphql"),
        *("gitignore", "hs", "hrl", "in", "ini", "ipynb", "jl", "lock", "lua", "m", "mk", "ml"),
        *("mod", "nim", "pl", "pm", "properties", "proto", "ps1", "pyx", "r", "rst", "scala"),
        *("sol", "sum", "svelte", "tex", "tf", "toml", "tsv", "vue", "zig", "bat", "conf", "j2"),
    }
)
_BARE_NAMES = frozenset(
    {"makefile", "dockerfile", "readme", "license", "gemfile", "rakefile", "procfile", "justfile"}
)
_NOT_FILES = frozenset({"node.js", "vue.js", "next.js", "react.js", "asp.net", "three.js", "d3.js"})
_PATH = re.compile(r"[\w.@+~\-()\[\]$]+(?:[/\\][\w.@+~\-()\[\]$]+)*")
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]")
_KEYED = re.compile(r"\b(?:title|file|filename|path|name)\s*=\s*[\"'{]*([^\"'\s}]+)")
_COMMENT = re.compile(
    r"^\s*(?:#+|//+|--|;+|%|/\*+|<!--|\"\"\"|''')\s*(?P<label>(?:path|file|filename)\s*[:=]\s*)?"
    r"[`'\"]?(?P<path>[^\s`'\"]+)[`'\"]?\s*(?:\*/|-->|\"\"\"|''')?\s*$",
    re.IGNORECASE,
)
# The block shows part of a file or program output. Taken as the file, it would destroy it.
_SHOWS_SOMETHING_ELSE = re.compile(
    r"\b(?:currently|existing|original|before|was|snippet|example|usage|output|prints?|running?"
    r"|tests? with|you have|looks like|instead of|given|contains the|error|traceback"
    r"|in|inside|within|to|add|insert|append|call|lines?|after)\b",
    re.IGNORECASE,
)
_MOST_WORDS_ABOVE = 10
_LONGEST_LINE_CHARS = 300


def looks_like_path(token: str) -> bool:
    """Whether a word is a file name, by its suffix or as a well-known name."""
    if "://" in token or token.lower() in _NOT_FILES or not _PATH.fullmatch(token):
        return False
    name = re.split(r"[/\\]", token)[-1]
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    return suffix in _SUFFIXES or name.lower() in _BARE_NAMES


def path_in_directive(rest: str) -> PurePosixPath | None:
    """Return the path after a directive such as `FILE:`; None if there is none."""
    text = rest.strip().rstrip("*_").strip()
    quoted = _QUOTED.match(text)
    if quoted:
        text = quoted[1]
    else:
        text = re.sub(r"\s+\([^)]*\)$", "", text).rstrip(":")
        words = text.split()
        if len(words) > 1 and (looks_like_path(words[0]) or not looks_like_path(words[-1])):
            text = words[0].rstrip(":,;")
    return usable(text)


def path_in_info(info: str) -> PurePosixPath | None:
    """Return the path in the info string of a fence."""
    keyed = _KEYED.search(info)
    if keyed:
        return usable(keyed[1])
    for word in info.strip("{} ").split():
        language, _, rest = word.partition(":")
        for token in (rest, word) if language.lower() in _FAMILY else (word,):
            if looks_like_path(token) or ("/" in token and _PATH.fullmatch(token)):
                return usable(token)
    return None


def path_above(line: str) -> PurePosixPath | None:
    """Return the path in the line above a block; None if the line is about something else."""
    text = line.strip()
    if len(text) > _LONGEST_LINE_CHARS:
        return None
    bare = text.strip("#*_`'\">:- \t").removeprefix("./")
    if looks_like_path(bare):
        return usable(bare)
    tokens = [word.strip("#*_`'\"(),:;") for word in text.split()]
    paths = {token.rstrip(".") for token in tokens if looks_like_path(token.rstrip("."))}
    is_about_it = text.rstrip("*_ ").endswith(":") or bool(
        re.match(r"\W*(?:file|path)", text, re.IGNORECASE)
    )
    too_long = len(tokens) > _MOST_WORDS_ABOVE
    if len(paths) != 1 or not is_about_it or too_long or _SHOWS_SOMETHING_ELSE.search(text):
        return None
    return usable(paths.pop())


def path_in_comment(line: str) -> PurePosixPath | None:
    """Return the path in a block's first line, if that line is a comment with only a path."""
    comment = _COMMENT.match(line) if len(line) <= _LONGEST_LINE_CHARS else None
    if comment is None or not (comment["label"] or looks_like_path(comment["path"])):
        return None
    return usable(comment["path"])


def usable(text: str) -> PurePosixPath | None:
    """Return a normalized path; None if no file can have it."""
    path = tidy_path(text)
    return None if why_unusable(path) else path


def language_of(info: str) -> str:
    """Return the language family that a fence names; empty if it is not known."""
    word = re.split(r"[\s:{,]", info.strip().strip("{.").lower())[0]
    return _FAMILY.get(word, "")


def fits_language(info: str, path: PurePosixPath) -> bool:
    """Whether a block in this language can be this file; unknown languages match."""
    language, suffix = language_of(info), _FAMILY.get(path.suffix.lstrip(".").lower(), "")
    return not language or not suffix or language == suffix or {language, suffix} == {"js", "ts"}
