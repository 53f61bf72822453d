"""The specification of a verification: the original files and the checks."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSpec:
    """The input of the verifier in addition to the attempt's files."""

    pristine: Tree
    """The original workspace, including all tests."""
    checks: tuple[str, ...]
    """The check commands, in order; at least one."""
    protected: tuple[PurePosixPath, ...]
    allowed: tuple[str, ...] = ()
    """Globs of files that may change; empty: everything that is not protected."""
    most: Grade = Grade.PROVEN
    """The highest possible grade: checks that the agent wrote prove nothing."""
    check_s: float = 180.0
    baseline_s: float = 60.0
    """The time limit for a check on the original files, where it may hang."""
    changed: tuple[PurePosixPath, ...] | None = None
    """The changed files if the original ones are not known; None: compare with `pristine`."""
