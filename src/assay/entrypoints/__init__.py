"""The ways in: parse outside words, call inside, translate errors."""
