"""Keys, tokens and certificates of clients and services."""
