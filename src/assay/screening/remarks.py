"""What a look at a file comes back with, whatever its language."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Remark:
    """One thing in a file that a policy names."""

    line: int
    rule: str
    """`import`, `call`, `attribute`, `dynamic_import`, `write_outside`, `text` or `unreadable`."""
    explanation: str
    """What it is and why it matters, in one line."""
