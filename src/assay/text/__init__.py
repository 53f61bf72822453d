"""Functions for text: truncation, plurals, diffs, redaction."""
