"""The HTTP API, its services and its database."""
