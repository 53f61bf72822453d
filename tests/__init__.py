"""Makes `tests.support` importable; nothing else lives here."""
