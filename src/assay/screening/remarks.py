"""The result type of all scans, for any language."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Remark:
    """One remark about a file under a policy."""

    line: int
    rule: str
    """`import`, `call`, `attribute`, `dynamic_import`, `write_outside`, `text` or `unreadable`."""
    explanation: str
    """What was found and why it matters, in one line."""
