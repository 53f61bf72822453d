"""Keys, tokens, certificates and credentials of clients and services."""
