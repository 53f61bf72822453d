"""Names of what tools leave behind in a workspace: not read, not proposed, and left as it is."""

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
