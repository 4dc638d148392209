"""The command `advisor mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.options import check_separate_folder, tracking_option
from advisor.model.errors import AdvisorError


@click.command()
@tracking_option
@click.option(
    "--allow-run",
    is_flag=True,
    help="Let two tools write: `gate` stores its answers in MLflow, `next_study` writes its report to OUT. No tool trains.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("advisor-report"),
    show_default=True,
    help="Output folder of `next_study` with --allow-run.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Serve over HTTP on this port of 127.0.0.1.")
def mcp(tracking_uri: str | None, allow_run: bool, out: Path, port: int | None) -> None:
    """Answer agents over the Model Context Protocol, on standard input and output or over HTTP.

    Eight tools: list_experiments, analyze_experiment, next_study, gate, explain_rule, history, compare and check_study. The
    tools read one store and change nothing, unless --allow-run is given. Answers quote names and texts of the store as data.

    \b
    advisor mcp --tracking-uri sqlite:///mlflow.db    started by the agent's program
    advisor mcp --port 8765                           for an agent that connects to http://127.0.0.1:8765/mcp

    The server needs the extra `mcp`: pip install "tuning-advisor[mcp]".
    """
    try:
        from advisor.cli.mcp.server import LOOPBACK_ADDRESS, listen_on_port, make_mcp_server, serve_http
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "uvicorn"):
            raise
        raise AdvisorError('advisor mcp needs the SDK of the protocol: pip install "tuning-advisor[mcp]"') from None
    from advisor.cli.mcp.tools import StoreTools
    from advisor.tracking.stores.location import parse_tracking_uri, require_local

    check_separate_folder(out)
    location = parse_tracking_uri(tracking_uri)
    if location.path is not None:
        require_local(location)  # check only paths of local stores, because a tracking server may start later than this server
    server = make_mcp_server(StoreTools(tracking_uri, allow_run, out))
    if port is None:
        server.run("stdio")
        return
    with listen_on_port(port) as at:
        click.echo(f"http://{LOOPBACK_ADDRESS}:{at.getsockname()[1]}/mcp", err=True)
        serve_http(server, at)
