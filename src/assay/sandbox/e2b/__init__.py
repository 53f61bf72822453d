"""Sandboxes in virtual machines of E2B, through its official SDK."""
