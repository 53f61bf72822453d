"""What is judged, and by what."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSpec:
    """Everything the verifier needs besides the proposal itself."""

    pristine: Tree
    """The workspace as it was, with all tests in it."""
    checks: tuple[str, ...]
    """Commands that decide, in order; at least one."""
    protected: tuple[PurePosixPath, ...]
    allowed: tuple[str, ...] = ()
    """Globs; empty: everything that is not protected."""
    most: Grade = Grade.PROVEN
    """No better than this: checks that the agent wrote prove nothing."""
    check_s: float = 180.0
    baseline_s: float = 60.0
    """How long a check may take on the untouched files, where it may hang."""
    changed: tuple[PurePosixPath, ...] | None = None
    """What was changed, where the untouched files are not known; None: compare with `pristine`."""
