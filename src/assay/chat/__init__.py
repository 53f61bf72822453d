"""Notebook chat: the session, its notebook and the prompts for the model."""
