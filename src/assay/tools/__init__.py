"""What a model may ask for besides edits: reading, searching and running, all in a sandbox."""
