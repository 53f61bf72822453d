"""Database of the server: connection, tables, rows."""
