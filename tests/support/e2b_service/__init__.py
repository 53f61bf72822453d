"""A service that speaks E2B's protocol, for tests: its machines are native sandboxes."""
