"""Text helpers: truncation, plurals, diffs, redaction."""
