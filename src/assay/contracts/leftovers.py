"""Names of files that tools leave in a workspace: Assay does not read, propose or change them."""

from typing import Final

LEFTOVER_NAMES: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".assay", ".DS_Store"),
        *("__pycache__", ".venv", ".tox", ".nox", ".eggs", "node_modules"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
        *(".gradle", ".terraform", ".next", ".nuxt", ".parcel-cache", ".turbo"),
    }
)
LEFTOVER_SUFFIXES: Final = (".pyc", ".pyo")
