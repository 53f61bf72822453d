"""Services behind the HTTP API: chat sessions, runs, memory, quotas, events."""
