"""Chat sessions in the terminal."""
