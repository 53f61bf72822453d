"""The independent check: runners, canaries, inverted tests, static analysis."""
