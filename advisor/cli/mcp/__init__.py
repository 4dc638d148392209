"""The command `advisor mcp`: answers agents over the Model Context Protocol (`command` -> `server` -> `tools` -> `quoting`)."""

from advisor.cli.mcp.command import mcp

__all__ = ["mcp"]
