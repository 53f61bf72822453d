"""One run from what a person asks to the files that are handed over, for every way in."""
