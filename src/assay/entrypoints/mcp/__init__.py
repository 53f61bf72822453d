"""The MCP servers: files and programs of a sandbox, for any MCP client."""
