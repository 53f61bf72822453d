"""The database of the server: connection, tables, rows."""
