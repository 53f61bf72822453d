"""Starts, resumes, replays and re-verifies runs."""
