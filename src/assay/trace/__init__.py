"""What is kept of a run: its events and files on disk, and the certificate of what was accepted."""
