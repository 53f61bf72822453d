"""The run loop: plan, code, screen, execute, verify, reflect."""
