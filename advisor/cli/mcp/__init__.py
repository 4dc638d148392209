"""The command `advisor mcp`: answers agents over the Model Context Protocol.

Import order of the modules: `command` -> `server` (the protocol) -> `tools` (the answers) -> `quoting` (marks texts of the
store as data)
"""

from advisor.cli.mcp.command import mcp

__all__ = ["mcp"]
