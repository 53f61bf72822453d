"""Static policy scan of programs before they are executed."""
