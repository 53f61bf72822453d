"""Code that runs in or around the jail. Imports the standard library only."""
