"""The subcommand `worldstream bench`: options, progress and table on stderr, JSON where it is asked for."""

import json
import math
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from worldstream.access_options import access_options
from worldstream.bench.figures import Figures, figures_of
from worldstream.bench.percentiles import METHOD
from worldstream.bench.plan import OpenLoop, Plan, name_of, parse_counts
from worldstream.bench.tables import NOTE, table_of
from worldstream.endpoint import DEFAULT_URL
from worldstream.errors import InvalidInputError
from worldstream.picture import read_picture
from worldstream.snapshot import check_place, write_whole

_STDOUT = Path("-")


class ArrivalKind(str, Enum):
    """How the requests of the open loop are spread."""

    poisson = "poisson"
    even = "even"


_Picture: TypeAlias = Annotated[
    Path | None, typer.Argument(help="What the worlds start from; default noise, another one for each session.")
]
_Sessions: TypeAlias = Annotated[
    str | None, typer.Option(help="Numbers of sessions at a time: 1,2,4 or 1-8; default 1,2,4,8, of a quick run 1,2.")
]
_Rounds: TypeAlias = Annotated[int, typer.Option(min=1, help="How often all of them are run, in turn.")]
_Chunks: TypeAlias = Annotated[int, typer.Option(min=2, help="Chunks that each session streams in a round.")]
_ChunksPerRequest: TypeAlias = Annotated[int, typer.Option(min=1, help="Chunks that one request asks for.")]
_Ahead: TypeAlias = Annotated[int, typer.Option(min=0, help="Requests under way beside the one that is read.")]
_Steps: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Denoising steps; default the server's.")]
_WarmChunks: TypeAlias = Annotated[int, typer.Option(min=0, help="Chunks before that, untimed: they fill the window.")]
_WarmSteps: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Denoising steps of those; default --steps.")]
_Actions: TypeAlias = Annotated[int, typer.Option(min=0, help="Single actions, each after the one before is answered.")]
_Cancels: TypeAlias = Annotated[int, typer.Option(min=0, help="Cancels in a round; they need --metrics-url.")]
_Fps: TypeAlias = Annotated[float, typer.Option(min=1, help="Frames a second of the simulated viewer.")]
_BufferS: TypeAlias = Annotated[float, typer.Option(min=0, help="From its first frame's arrival to its showing.")]
_Paced: TypeAlias = Annotated[bool, typer.Option(help="Tell the server --fps: it then never runs ahead of the viewer.")]
_Rate: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0.001, help="Adds an open loop: so many requests a second, of all sessions together."),
]
_Requests: TypeAlias = Annotated[int, typer.Option(min=1, help="Requests of the open loop in a round.")]
_Arrivals: TypeAlias = Annotated[ArrivalKind, typer.Option(help="How they are spread.")]
_Seed: TypeAlias = Annotated[int, typer.Option(help="Of pauses and arrivals.")]
_Quick: TypeAlias = Annotated[
    bool, typer.Option(help="Few chunks, actions, cancels and requests: to see that it runs.")
]
_JsonFile: TypeAlias = Annotated[Path | None, typer.Option("--json", help="A file for all figures; - is stdout.")]
_Url: TypeAlias = Annotated[str, typer.Option(help="The server's gRPC endpoint.", envvar="WORLDSTREAM_GRPC")]
_MetricsUrl: TypeAlias = Annotated[str | None, typer.Option(help="Its metrics page.", envvar="WORLDSTREAM_METRICS")]
_Timeout: TypeAlias = Annotated[float, typer.Option(help="Longest wait for a response, in seconds.")]


def bench(
    picture: _Picture = None,
    sessions: _Sessions = None,
    rounds: _Rounds = 1,
    chunks: _Chunks = 12,
    chunks_per_request: _ChunksPerRequest = 1,
    ahead: _Ahead = 1,
    steps: _Steps = None,
    warm_chunks: _WarmChunks = 7,
    warm_steps: _WarmSteps = None,
    actions: _Actions = 4,
    cancels: _Cancels = 3,
    fps: _Fps = 16.0,
    buffer_s: _BufferS = 1.0,
    paced: _Paced = False,
    rate: _Rate = None,
    requests: _Requests = 32,
    arrivals: _Arrivals = ArrivalKind.poisson,
    seed: _Seed = 0,
    quick: _Quick = False,
    json_file: _JsonFile = None,
    url: _Url = DEFAULT_URL,
    metrics_url: _MetricsUrl = None,
    timeout: _Timeout = 60.0,
) -> None:
    """Measure how evenly a running server streams, and how soon it answers."""
    for option, value in (("--fps", fps), ("--buffer-s", buffer_s), ("--rate", rate)):
        if value is not None and not math.isfinite(value):
            raise InvalidInputError(f"{option}: wanted a number that is finite, got {value}")
    plan = Plan(
        num_chunks=chunks,
        chunks_per_request=chunks_per_request,
        num_ahead=ahead,
        num_steps=steps,
        num_warm_chunks=warm_chunks,
        num_warm_steps=warm_steps,
        num_actions=actions,
        num_cancels=cancels,
        fps=fps,
        buffer_s=buffer_s,
        is_paced=paced,
        open_loop=None if rate is None else OpenLoop(rate, requests, arrivals.value),
        picture=None if picture is None else read_picture(picture),
        seed=seed,
    )
    counts = parse_counts(sessions or ("1,2" if quick else "1,2,4,8"))
    if quick:
        plan = quickened(plan)
    plans = {name_of(count): replace(plan, num_sessions=count) for count in counts}
    if json_file is not None and json_file != _STDOUT:
        check_place(json_file)
    figures = _run(plans, rounds, url, metrics_url, timeout)
    if json_file is not None:
        asked = asdict(replace(plan, picture=None)) | {"num_sessions": counts, "num_rounds": rounds}
        _write(json_file, {"bench": "worldstream", "percentiles": METHOD, "asked": asked, "arms": figures})


def quickened(plan: Plan) -> Plan:
    """The same with few chunks, actions, cancels and requests; no more than were asked for."""
    loop = plan.open_loop
    return replace(
        plan,
        num_chunks=min(plan.num_chunks, 4),
        num_warm_chunks=min(plan.num_warm_chunks, 1),
        num_actions=min(plan.num_actions, 2),
        num_cancels=min(plan.num_cancels, 1),
        open_loop=None if loop is None else replace(loop, num_requests=min(loop.num_requests, 4)),
    )


def _run(
    plans: dict[str, Plan], num_rounds: int, url: str, metrics_url: str | None, timeout_s: float
) -> dict[str, Figures]:
    # Both load gRPC's asyncio, which no other command needs.
    from worldstream.aio import AsyncWorldClient
    from worldstream.bench.run import measure

    access, console = access_options.get(), Console(stderr=True)
    client = AsyncWorldClient(url, timeout_s, tls=access.tls, tls_ca=access.tls_ca, api_key=access.api_key())
    rounds = measure(client, plans, num_rounds, metrics_url, say=console.print)
    figures = {name: figures_of(rounds[name], plan) for name, plan in plans.items()}
    console.print(table_of(figures))
    console.print(NOTE)
    if metrics_url is None:
        console.print("No metrics page was named (--metrics-url), so cancels were left out.")
    return figures


def _write(file: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document)
    if file == _STDOUT:
        typer.echo(text)
    else:
        write_whole(file, f"{text}\n".encode())
