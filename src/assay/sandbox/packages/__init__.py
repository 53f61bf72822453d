"""Python packages for sandboxes: resolved and unpacked outside, kept as read-only layers."""
