"""Notebook chat: the session, its notebook, and what the model is shown."""
