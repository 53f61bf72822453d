"""The static policy scan of programs before they run."""
