"""The command `worldstream`: make a film from a picture, look at a server. Words and files; the work is elsewhere."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from worldstream import paths, video
from worldstream.batch import Batch
from worldstream.chunks import num_frames
from worldstream.client import DEFAULT_URL, WorldClient
from worldstream.errors import InvalidInputError, WorldStreamError
from worldstream.info import ServerInfo
from worldstream.picture import upright_size
from worldstream.plan import Ask, chunks_that_fit, plan_film
from worldstream.session import Session

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Stream a camera-steered world from a picture.",
)

_MADE_PATH_CHUNKS = 6
_SHEET_FRAMES = 12
_MADE_PATHS = {
    "walk": lambda num: paths.walk(num),
    "pan": lambda num: paths.pan(num, deg_per_frame=4.0),
    "orbit": lambda num: paths.orbit(num, radius=3.0, deg_per_frame=4.0),
    "stand": lambda num: paths.stand(num),
}


class Rate(str, Enum):
    """How many poses a file holds."""

    latent = "latent"
    frame = "frame"


class Fit(str, Enum):
    """How the picture is brought to the model's size."""

    crop = "crop"
    stretch = "stretch"


@dataclass(frozen=True)
class Steering:
    """What moves the camera, and how long the film gets."""

    num_chunks: int
    cam_to_world: npt.NDArray[np.float32] | None = None
    actions: list[str] | None = None


@dataclass
class Tally:
    """What a film's making took."""

    started_s: float
    first_frame_s: float = 0.0
    num_frames: int = 0

    def closing_line(self, output: Path) -> str:
        """The line that ends a run."""
        took_s = time.perf_counter() - self.started_s
        first_ms = 1000 * (self.first_frame_s - self.started_s)
        rate = self.num_frames / took_s
        return f"{output}: {self.num_frames} frames, {rate:.1f} frames/s, first frame after {first_ms:.0f} ms"


@app.command()
def generate(
    picture: Annotated[Path, typer.Argument(help="What the world starts from: PNG, JPEG or WebP.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The MP4 to write.")],
    path: Annotated[
        str | None, typer.Option(help="walk, pan, orbit, stand, or a .npy file of poses [N, 4, 4]; default walk.")
    ] = None,
    actions: Annotated[str | None, typer.Option(help='Key presses, one a latent frame: "wwww[wl]l." .')] = None,
    intrinsics: Annotated[Path | None, typer.Option(help="A .npy file of fx, fy, cx, cy: [4] or [N, 4].")] = None,
    intrinsics_size: Annotated[
        str | None, typer.Option(help="Size of the picture that the intrinsics were made for: 832x480.")
    ] = None,
    pose_rate: Annotated[Rate, typer.Option(help="Whether files hold one pose a latent frame or one a frame.")] = (
        Rate.latent
    ),
    translation_scale: Annotated[float | None, typer.Option(help="Your units in one unit of the model.")] = None,
    fit: Annotated[Fit | None, typer.Option(help="How the picture is brought to the model's size.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Words for the world.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal inputs with equal seeds give equal frames.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    chunks: Annotated[
        int | None, typer.Option(help=f"Length; default what the file or actions fill, else {_MADE_PATH_CHUNKS}.")
    ] = None,
    chunks_per_request: Annotated[int, typer.Option(help="Chunks that one request asks for.")] = 2,
    fps: Annotated[int, typer.Option(help="Frames a second of the MP4.")] = 16,
    contact_sheet: Annotated[Path | None, typer.Option(help="A PNG with some of the frames.")] = None,
    url: Annotated[str, typer.Option(help="The server's gRPC endpoint.", envvar="WORLDSTREAM_GRPC")] = DEFAULT_URL,
    timeout: Annotated[float, typer.Option(help="Longest wait for a response, in seconds.")] = 60.0,
) -> None:
    """Make a film: move a camera through the world behind a picture."""
    with _one_line_errors(), WorldClient(url, timeout_s=timeout) as client:
        size = upright_size(picture)
        chunk_latent_frames = client.chunk_latent_frames()
        steering = _steering(path, actions, pose_rate, chunks, chunk_latent_frames)
        rows = None if intrinsics is None else _intrinsics(intrinsics, intrinsics_size, pose_rate, size, path, steering)
        asks = plan_film(
            steering.num_chunks,
            chunks_per_request,
            chunk_latent_frames,
            steering.cam_to_world,
            steering.actions,
            rows,
        )
        session = client.session(
            picture,
            prompt=prompt,
            seed=seed,
            translation_scale=translation_scale,
            fit=None if fit is None else fit.value,
            num_steps=steps,
        )
        with session:
            total = num_frames(steering.num_chunks, chunk_latent_frames)
            tally = _write_film(_film(session, asks), total, output, fps, contact_sheet)
        typer.echo(tally.closing_line(output))


@app.command()
def info(
    url: Annotated[str, typer.Option(help="The server's gRPC endpoint.", envvar="WORLDSTREAM_GRPC")] = DEFAULT_URL,
    metrics_url: Annotated[str | None, typer.Option(help="Its metrics page.", envvar="WORLDSTREAM_METRICS")] = None,
    timeout: Annotated[float, typer.Option(help="Longest wait for an answer, in seconds.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Show a server's state, models and metrics."""
    with _one_line_errors(), WorldClient(url, timeout_s=timeout, metrics_url=metrics_url) as client:
        state = client.info()
    if as_json:
        typer.echo(json.dumps(state.to_dict()))
    else:
        _print_info(state)


def _steering(
    path: str | None, actions: str | None, pose_rate: Rate, chunks: int | None, chunk_latent_frames: int
) -> Steering:
    if chunks is not None and chunks < 1:
        raise InvalidInputError(f"--chunks: wanted 1 or more, got {chunks}")
    if actions is not None:
        if path is not None:
            raise InvalidInputError("--path, --actions: one of them steers, both came")
        keys = paths.actions_from_text(actions)
        return Steering(chunks or -(-len(keys) // chunk_latent_frames), actions=keys)
    make_path = _MADE_PATHS.get(path or "walk")
    if make_path is not None:
        num_chunks = chunks or _MADE_PATH_CHUNKS
        return Steering(num_chunks, make_path(num_chunks * chunk_latent_frames))
    return _steering_from_file(Path(str(path)), pose_rate, chunks, chunk_latent_frames)


def _steering_from_file(file: Path, pose_rate: Rate, chunks: int | None, chunk_latent_frames: int) -> Steering:
    poses = paths.load_poses(file, pose_rate.value)
    num_held = chunks_that_fit(len(poses), chunk_latent_frames, file.name)
    if chunks is not None and chunks > num_held:
        typer.echo(
            f"note: {file.name} holds {len(poses)} poses, {chunks} chunks need {chunks * chunk_latent_frames}; "
            f"the film ends after {num_held} chunks",
            err=True,
        )
    return Steering(min(chunks or num_held, num_held), poses)


def _intrinsics(
    file: Path, made_for: str | None, rate: Rate, picture_size: tuple[int, int], path: str | None, steering: Steering
) -> npt.NDArray[np.float32]:
    """Rows in pixels of the picture: one for each pose where poses come from a file, else the first."""
    rows = paths.load_intrinsics(file, rate.value)
    if made_for is not None:
        rows = paths.scale_intrinsics(rows, _parse_size(made_for), picture_size)
    if len(rows) == 1 or steering.cam_to_world is None or path is None or path in _MADE_PATHS:
        return rows[:1]
    if len(rows) != len(steering.cam_to_world):
        raise InvalidInputError(
            f"{file.name}: wanted 1 row or one for each of {len(steering.cam_to_world)} poses, got {len(rows)}"
        )
    return rows


def _parse_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise InvalidInputError(f"--intrinsics-size: wanted WIDTHxHEIGHT such as 832x480, got {text}")
    return int(width), int(height)


def _film(session: Session, asks: Iterable[Ask]) -> Iterator[Batch]:
    """Keep one request ahead of the one whose frames are read, so that the server need not wait for this process."""
    under_way: deque[Iterator[Batch]] = deque()
    for ask in asks:
        under_way.append(
            session.generate(ask.cam_to_world, ask.actions, ask.num_chunks, ask.intrinsics, end=ask.is_end)
        )
        if len(under_way) > 1:
            yield from under_way.popleft()
    for batches in under_way:
        yield from batches


def _write_film(batches: Iterator[Batch], total: int, output: Path, fps: int, sheet: Path | None) -> Tally:
    output.parent.mkdir(parents=True, exist_ok=True)
    tally = Tally(time.perf_counter())
    shown = set(video.spread(total, _SHEET_FRAMES)) if sheet is not None else set()
    kept = []
    with video.Mp4Writer(output, fps) as writer, _progress() as progress:
        task = progress.add_task(output.name, total=total)
        for batch in batches:
            tally.first_frame_s = tally.first_frame_s or time.perf_counter()
            for index, pixels in zip(batch.frame_index.tolist(), batch.frames, strict=True):
                writer.write(pixels)
                if index in shown:
                    kept.append(pixels.copy())
            tally.num_frames += len(batch.frames)
            progress.update(task, completed=tally.num_frames)
    if sheet is not None:
        sheet.parent.mkdir(parents=True, exist_ok=True)
        video.contact_sheet(kept, sheet)
    return tally


def _progress() -> Progress:
    """A bar on stderr; nothing at all where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("frames"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _print_info(state: ServerInfo) -> None:
    console = Console()
    console.print(f"{state.name} {state.version}: {_word(state.is_live, 'live')}, {_word(state.is_ready, 'ready')}")
    table = Table("model", "state")
    for name, is_ready in state.models.items():
        table.add_row(name, _word(is_ready, "ready"))
    console.print(table)
    for name, value in (state.metrics or {}).items():
        console.print(f"{name} {value:g}", highlight=False, markup=False, soft_wrap=True)


def _word(is_so: bool, word: str) -> str:
    return word if is_so else f"not {word}"


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (WorldStreamError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
