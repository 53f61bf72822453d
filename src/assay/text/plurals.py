"""Numbers with nouns, for messages."""


def count(number: int, noun: str) -> str:
    """Return `1 test`, `1,200 tests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def all_of(number: int, noun: str) -> str:
    """Return `1 test`, `all 1,200 tests`."""
    return count(number, noun) if number == 1 else f"all {count(number, noun)}"
