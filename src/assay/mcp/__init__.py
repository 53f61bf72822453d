"""MCP servers: files and programs of sandboxes for MCP clients."""
