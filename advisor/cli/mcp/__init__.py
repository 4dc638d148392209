"""The command `advisor mcp`. Import order: `command` -> `server` (the protocol) -> `tools` (the answers) -> `quoting`."""

from advisor.cli.mcp.command import mcp

__all__ = ["mcp"]
