"""Python packages for sandboxes: resolved and unpacked outside, stored as read-only layers."""
