"""Short previews of files that a user loads; the sandbox reads the file, never this process."""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.artifacts import media_type_of
from assay.contracts.execution import PythonCode
from assay.contracts.ports import Sandbox
from assay.text.truncate import trim

_CHARS: Final = 1_500
_WITHIN_S: Final = 20.0
_TABLES: Final = frozenset({".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".xls"})
_SUMMARY: Final = """
import sys
import pandas as pd

path = sys.argv[1]
end = path.rpartition(".")[2].lower()
read = {
    "csv": pd.read_csv,
    "tsv": lambda path: pd.read_csv(path, sep="\\t"),
    "json": pd.read_json,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "parquet": pd.read_parquet,
}.get(end, pd.read_excel)
table = read(path)
print(f"{len(table)} rows, {len(table.columns)} columns")
for name, kind in list(table.dtypes.items())[:40]:
    values = table[name]
    missing = int(values.isna().sum())
    print(f"- {name}: {kind}" + (f", {missing} missing" if missing else ""))
print("First rows:")
print(table.head(3).to_csv(index=False).rstrip())
"""


async def preview(sandbox: Sandbox, path: PurePosixPath, content: bytes) -> str:
    """Describe a file: columns and first rows of a table, or the beginning of a text."""
    kind = media_type_of(path, content)
    if path.suffix.lower() in _TABLES:
        program = PythonCode(source=_SUMMARY.encode(), args=(str(path),), timeout_s=_WITHIN_S)
        result = await sandbox.run(program)
        if result.succeeded:
            return trim(result.stdout, max_chars=_CHARS)
    if kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "toml")):
        text = content[: _CHARS * 4].decode("utf-8", errors="replace")
        return f"{kind}, begins:\n{trim(text, max_chars=_CHARS)}"
    return f"{kind}, {len(content)} bytes"
