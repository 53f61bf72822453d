"""Runs, chats, certificates and keys on disk."""
