"""The command `worldstream`: make a film from a picture, look at a server. Words alone; the work is elsewhere."""

import functools
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, ParamSpec, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from worldstream import __version__
from worldstream.access_options import AccessOptions, access_options
from worldstream.bench import command as bench_command
from worldstream.chunks import num_frames
from worldstream.client import WorldClient
from worldstream.embed import MAX_TOKENS
from worldstream.embed import embed as vectors_of
from worldstream.embeds import check_suffix, read_embeds, write_embeds
from worldstream.endpoint import DEFAULT_RECONNECT_S, DEFAULT_URL
from worldstream.errors import InvalidInputError, WorldStreamError
from worldstream.film import Film, read_truth, stream_film, write_contact_sheet
from worldstream.info import ServerInfo, metric_lines
from worldstream.picture import read_picture, upright_size
from worldstream.plan import plan_film
from worldstream.sizing import command as sizing_command
from worldstream.snapshot import write_whole
from worldstream.steering import MADE_PATH_CHUNKS, choose_steering, intrinsics_rows, parse_scale, parse_size

P = ParamSpec("P")
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Rate(str, Enum):
    """How many poses a file holds."""

    latent = "latent"
    frame = "frame"


class PoseConvention(str, Enum):
    """What a file's poses are written in."""

    opencv = "opencv"
    opengl = "opengl"
    blender = "blender"
    nerf = "nerf"
    unreal = "unreal"
    colmap = "colmap"


class Fit(str, Enum):
    """How the picture is brought to the model's size."""

    crop = "crop"
    stretch = "stretch"


_Picture: TypeAlias = Annotated[
    Path, typer.Argument(help="What the world starts from: PNG, JPEG, WebP, or a file of base64 or JSON.")
]
_Output: TypeAlias = Annotated[Path, typer.Option("-o", "--output", help="The MP4 to write.")]
_Path: TypeAlias = Annotated[
    str | None,
    typer.Option(
        # A backslash keeps rich from reading the brackets as its own markup.
        help="walk, pan, orbit, stand, or a file of poses (.npy \\[N, 4, 4], COLMAP's images.txt); default walk."
    ),
]
_Actions: TypeAlias = Annotated[
    str | None,
    typer.Option(
        # A backslash keeps rich from reading the brackets as its own markup.
        help="Key presses, one entry a latent frame, such as 'www\\[wl]l.': wasd move, ijkl look, "
        "\\[wl] is both at once, a full stop stands still."
    ),
]
_Intrinsics: TypeAlias = Annotated[Path | None, typer.Option(help="A .npy file of fx, fy, cx, cy: [4] or [N, 4].")]
_IntrinsicsSize: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Size of the picture that the intrinsics were made for, 832x480; default the sent picture's."),
]
_Rate: TypeAlias = Annotated[Rate, typer.Option(help="Whether files hold one pose a latent frame or one a frame.")]
_PoseConvention: TypeAlias = Annotated[
    PoseConvention,
    typer.Option(help="What a file's poses are written in; colmap also reads images.txt. See the README's picture."),
]
_Scale: TypeAlias = Annotated[
    str | None, typer.Option(help="Your units in one of the model's, or auto: the longest step of a pose file.")
]
_Fit: TypeAlias = Annotated[Fit | None, typer.Option(help="How the picture is brought to the model's size.")]
_Size: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Width and height of the frames, such as 160x96, if the server serves them."),
]
_Prompt: TypeAlias = Annotated[str | None, typer.Option(help="Words for the world.")]
_PromptEmbeds: TypeAlias = Annotated[
    Path | None, typer.Option(help="The prompt's token vectors, a file that `embed` wrote, in place of words.")
]
_Seed: TypeAlias = Annotated[int | None, typer.Option(help="Equal inputs with equal seeds give equal frames.")]
_Steps: TypeAlias = Annotated[int | None, typer.Option(help="Denoising steps.")]
_Chunks: TypeAlias = Annotated[
    int | None, typer.Option(help=f"Length; default what the file or actions fill, else {MADE_PATH_CHUNKS}.")
]
_ChunksPerRequest: TypeAlias = Annotated[int, typer.Option(help="Chunks that one request asks for.")]
_Fps: TypeAlias = Annotated[int, typer.Option(help="Frames a second of the MP4.")]
_ContactSheet: TypeAlias = Annotated[
    Path | None, typer.Option(help="A PNG of the sent picture and then some of the frames.")
]
_Truth: TypeAlias = Annotated[
    Path | None, typer.Option(help="An .npy of what the camera should see, shown below: uint8 [T, H, W, 3].")
]
_Url: TypeAlias = Annotated[str, typer.Option(help="The server's gRPC endpoint.", envvar="WORLDSTREAM_GRPC")]
_MetricsUrl: TypeAlias = Annotated[str | None, typer.Option(help="Its metrics page.", envvar="WORLDSTREAM_METRICS")]
_Timeout: TypeAlias = Annotated[float, typer.Option(help="Longest wait for a response, in seconds.")]
_AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


_SessionId: TypeAlias = Annotated[str, typer.Argument(help="The id of a live session.")]
_IsNumber: TypeAlias = Annotated[bool, typer.Option("--number", help="The id is a number: 7 and '7' are two sessions.")]
_PlayOutput: TypeAlias = Annotated[Path | None, typer.Option("-o", "--output", help="An MP4 to write.")]
_Keys: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A file of keys, - for stdin, in place of the keyboard: one entry a latent frame, such as 'www\\[wl]l.'; "
        "q quits, p and the rest of its line are a prompt."
    ),
]
_Show: TypeAlias = Annotated[
    bool | None,
    typer.Option("--show/--no-show", help="Show the frames in the terminal; default where stdout is one."),
]
_MostChunks: TypeAlias = Annotated[int | None, typer.Option(min=1, help="The longest walk; default until you quit.")]
_PlayFps: TypeAlias = Annotated[int, typer.Option(min=1, help="Frames a second, shown and written.")]

# SIGHUP comes when a terminal or an ssh connection is closed.
_STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class _Stopped(BaseException):
    """A signal asked us to end."""


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


_Version: TypeAlias = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
]


_Tls: TypeAlias = Annotated[bool, typer.Option("--tls", help="Speak TLS.", envvar="WORLDSTREAM_TLS")]
_TlsCa: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Certificates (PEM) that vouch for the server; implies --tls.", envvar="WORLDSTREAM_TLS_CA"),
]
_ApiKeyFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="A file of the key that the server wants.", envvar="WORLDSTREAM_API_KEY_FILE")
]


@app.callback()
def main(
    version: _Version = False,
    tls: _Tls = False,
    tls_ca: _TlsCa = None,
    api_key_file: _ApiKeyFile = None,
) -> None:
    """Stream a camera-steered world from a picture."""
    access_options.set(AccessOptions(tls, tls_ca, api_key_file))


def _connect(
    url: str, timeout_s: float, metrics_url: str | None = None, reconnect_s: float = DEFAULT_RECONNECT_S
) -> WorldClient:
    access = access_options.get()
    return WorldClient(url, timeout_s, metrics_url, reconnect_s, access.tls, access.tls_ca, access.api_key())


@app.command()
def generate(
    picture: _Picture,
    output: _Output,
    path: _Path = None,
    actions: _Actions = None,
    intrinsics: _Intrinsics = None,
    intrinsics_size: _IntrinsicsSize = None,
    pose_rate: _Rate = Rate.latent,
    pose_convention: _PoseConvention = PoseConvention.opencv,
    translation_scale: _Scale = None,
    fit: _Fit = None,
    size: _Size = None,
    prompt: _Prompt = None,
    seed: _Seed = None,
    steps: _Steps = None,
    chunks: _Chunks = None,
    chunks_per_request: _ChunksPerRequest = 2,
    fps: _Fps = 16,
    contact_sheet: _ContactSheet = None,
    truth: _Truth = None,
    prompt_embeds: _PromptEmbeds = None,
    url: _Url = DEFAULT_URL,
    timeout: _Timeout = 60.0,
) -> None:
    """Make a film: move a camera through the world behind a picture."""
    with _stoppable(), _one_line_errors(), _connect(url, timeout) as client:
        _check_mp4(output)
        if intrinsics_size is not None and intrinsics is None:
            raise InvalidInputError("--intrinsics-size: is for --intrinsics, which names none")
        if truth is not None and contact_sheet is None:
            raise InvalidInputError("--truth: is for --contact-sheet, which names none")
        encoded = read_picture(picture)
        length = client.chunk_latent_frames()
        steering = choose_steering(path, actions, pose_rate.value, chunks, length, pose_convention.value)
        session = client.session(
            encoded,
            prompt=prompt,
            seed=seed,
            translation_scale=None if translation_scale is None else parse_scale(translation_scale, steering),
            fit=None if fit is None else fit.value,
            num_steps=steps,
            size=None if size is None else parse_size("--size", size)[::-1],
            prompt_embeds=None if prompt_embeds is None else read_embeds(prompt_embeds),
        )
        if steering.note:
            typer.echo(f"note: {steering.note}", err=True)
        sizes = (
            None
            if intrinsics_size is None
            else (parse_size("--intrinsics-size", intrinsics_size), upright_size(encoded))
        )
        rows = None if intrinsics is None else intrinsics_rows(intrinsics, pose_rate.value, steering, sizes)
        asks = plan_film(steering.num_chunks, chunks_per_request, length, steering.cam_to_world, steering.actions, rows)
        film = Film(output, num_frames(steering.num_chunks, length))
        rendered = None if truth is None else read_truth(truth, film.total)
        with session:
            film.write(stream_film(session, asks), fps)
        if contact_sheet is not None:
            write_contact_sheet(client, encoded, film, contact_sheet, rendered)
        typer.echo(film.closing_line())


@app.command()
def play(
    picture: _Picture,
    output: _PlayOutput = None,
    keys: _Keys = None,
    show: _Show = None,
    fit: _Fit = None,
    size: _Size = None,
    prompt: _Prompt = None,
    seed: _Seed = None,
    steps: _Steps = None,
    chunks: _MostChunks = None,
    fps: _PlayFps = 16,
    url: _Url = DEFAULT_URL,
    timeout: _Timeout = 60.0,
) -> None:
    """Walk through the world behind a picture by keys, and see it in the terminal.

    w a s d move, i j k l or the arrows look, the space bar stands still, p types a new prompt, q quits.
    """
    from worldstream.play.run import choose_show
    from worldstream.play.run import play as play_session

    with _stoppable(), _one_line_errors(), _connect(url, timeout) as client:
        is_shown = choose_show(show, output is not None, keys is not None)
        if output is not None:
            _check_mp4(output)
        session = client.session(
            read_picture(picture),
            prompt=prompt,
            seed=seed,
            fit=None if fit is None else fit.value,
            num_steps=steps,
            size=None if size is None else parse_size("--size", size)[::-1],
        )
        with session:
            line = play_session(session, client.chunk_latent_frames(), fps, keys, output, is_shown, chunks)
        typer.echo(line)


@app.command()
def snapshot(
    session: _SessionId,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    number: _IsNumber = False,
    url: _Url = DEFAULT_URL,
    timeout: _Timeout = 60.0,
) -> None:
    """Save a live session to a file; it goes on."""
    with _one_line_errors(), _connect(url, timeout) as client:
        live = client.session(None, session_id=_session_id(session, number))
        content = live.snapshot()
        live.close()
        write_whole(output, content)
    typer.echo(f"{output}: session {session}, {len(content)} bytes")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What the command snapshot wrote.")],
    session_id: Annotated[str | None, typer.Option(help="The session's new id; default a random one.")] = None,
    number: _IsNumber = False,
    url: _Url = DEFAULT_URL,
    timeout: _Timeout = 60.0,
) -> None:
    """Go on with a saved session, on any server with the same model; prints its id."""
    with _one_line_errors(), _connect(url, timeout) as client:
        name = None if session_id is None else _session_id(session_id, number)
        session = client.session(None, session_id=name, snapshot=file.read_bytes())
        session.restore()
        session.close()
    typer.echo(session.session_id)


@app.command()
def embed(
    text: Annotated[str, typer.Argument(help="The prompt.")],
    checkpoint: Annotated[Path, typer.Option(help="A folder with the folders text_encoder and tokenizer.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npy or .safetensors file to write.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="The served model's text_len.")] = MAX_TOKENS,
    device: Annotated[str, typer.Option(help="Where to compute: torch's name of it.")] = "cpu",
) -> None:
    """Turn a prompt into its token vectors, for servers without a text encoder; needs torch and transformers."""
    with _stoppable(), _one_line_errors():
        check_suffix(output)
        vectors = vectors_of(text, checkpoint, max_tokens, device)
        write_embeds(output, vectors)
        typer.echo(f"{output}: {vectors.shape[0]} tokens of {vectors.shape[1]} numbers")


@app.command()
def info(
    url: _Url = DEFAULT_URL, metrics_url: _MetricsUrl = None, timeout: _Timeout = 10.0, as_json: _AsJson = False
) -> None:
    """Show a server's state, models and metrics."""
    # How it is now: whoever looks does not wait for a server to come.
    with _one_line_errors(), _connect(url, timeout, metrics_url, reconnect_s=0) as client:
        state = client.info()
    if as_json:
        typer.echo(json.dumps(state.to_dict()))
    else:
        _print_info(state)


def _print_info(state: ServerInfo) -> None:
    console = Console()
    console.print(f"{state.name} {state.version}: {_word(state.is_live, 'live')}, {_word(state.is_ready, 'ready')}")
    table = Table("model", "state")
    for name, is_ready in state.models.items():
        table.add_row(name, _word(is_ready, "ready"))
    console.print(table)
    for line in [] if state.metrics is None else metric_lines(state.metrics):
        typer.echo(line)


def _word(is_so: bool, word: str) -> str:
    return word if is_so else f"not {word}"


def _session_id(text: str, is_number: bool) -> str | int:
    if not is_number:
        return text
    if not text.isdecimal():
        raise InvalidInputError(f"--number: wanted an id of digits, got {text!r}")
    return int(text)


def _check_mp4(output: Path) -> None:
    if output.suffix.lower() != ".mp4":
        raise InvalidInputError(f"--output: wanted a name that ends in .mp4, got {output.name}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn these signals into an exception, so that the session is ended and the file closed on the way out."""

    def stop(signum: int, _: FrameType | None) -> None:
        raise _Stopped(signum)

    # Started by nohup, a command is to outlive its terminal.
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    before = {signum: signal.signal(signum, stop) for signum in _STOPPING if not (is_kept and signum == signal.SIGHUP)}
    try:
        yield
    except _Stopped as stopped:
        typer.echo("stopped", err=True)
        raise typer.Exit(128 + stopped.args[0]) from None
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (WorldStreamError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


def _guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The same command with the same options, whose errors are one line and which a signal ends in good order."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        with _stoppable(), _one_line_errors():
            command(*args, **kwargs)

    return guarded


app.command()(_guarded(bench_command.bench))
app.command()(_guarded(sizing_command.plan))
