"""MCP servers that give clients files and programs in sandboxes."""
