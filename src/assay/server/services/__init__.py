"""What the HTTP API offers: chat sessions, runs, memory, quotas, events."""
