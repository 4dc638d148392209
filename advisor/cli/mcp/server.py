"""Serves the tools with the official MCP SDK, over standard input and output or over HTTP on a loopback address."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from advisor import __version__
from advisor.cli.mcp.quoting import QUOTED_TEXT_NOTICE, quote_error_message
from advisor.cli.mcp.tools import StoreTools
from advisor.model.errors import AdvisorError

SERVER_INSTRUCTIONS = f"""Answers about hyperparameter tuning in an MLflow store, by statistical rules.
Each answer is one JSON object. {QUOTED_TEXT_NOTICE} The key "action" holds the advisor's own conclusion; names in its
sentences come from the store. A person must confirm the commands that an answer proposes."""
LOOPBACK_ADDRESS = "127.0.0.1"


def make_mcp_server(tools: StoreTools) -> MCPServer[None]:
    server = MCPServer[None]("tuning-advisor", version=__version__, instructions=SERVER_INSTRUCTIONS, log_level="WARNING")
    lock = threading.Lock()
    may_write = (tools.next_study, tools.gate)
    others = (tools.explain_rule, tools.history, tools.compare, tools.check_study)
    for tool in (tools.list_experiments, tools.analyze_experiment, *may_write, *others):
        reads_only = not tools.allow_run or tool not in may_write
        hints = ToolAnnotations(read_only_hint=reads_only, destructive_hint=False, open_world_hint=False)
        server.add_tool(_as_protocol_tool(tool, lock), annotations=hints, structured_output=False)
    return server


def _as_protocol_tool(tool: Callable[..., str], lock: threading.Lock) -> Callable[..., CallToolResult]:
    """Wrap the tool in a function that returns its answer or error as an MCP result. The lock lets only one tool run at a time."""

    @functools.wraps(tool)
    def answer(**arguments: Any) -> CallToolResult:
        try:
            with lock:
                text, failed = tool(**arguments), False
        except AdvisorError as error:
            text, failed = quote_error_message(str(error)), True
        except Exception as error:
            text, failed = quote_error_message(f"unexpected {type(error).__name__}: {error} (a bug)"), True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    return answer


def listen_on_port(port: int) -> socket.socket:
    """Return a socket that listens on the port. Raises AdvisorError if the port is in use."""
    try:
        return socket.create_server((LOOPBACK_ADDRESS, port))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else error
        raise AdvisorError(f"cannot listen on port {port}: {reason}; choose another --port") from None


def serve_http(server: MCPServer[None], listener: socket.socket) -> None:
    """Serve the tools until interrupted. The server refuses requests of other web sites, by the headers Host and Origin."""
    port = listener.getsockname()[1]
    addresses = [f"{name}:{port}" for name in (LOOPBACK_ADDRESS, "localhost")]
    security = TransportSecuritySettings(allowed_hosts=addresses, allowed_origins=[f"http://{host}" for host in addresses])
    app = server.streamable_http_app(transport_security=security)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
