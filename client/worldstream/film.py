"""Makes a film: asks a session for its frames, and writes them as they come. Knows the client and files, no options."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from worldstream import video
from worldstream.batch import Batch
from worldstream.client import WorldClient
from worldstream.errors import InvalidInputError
from worldstream.npy import open_npy
from worldstream.plan import Ask
from worldstream.session import Session

_SHEET_COLUMNS = 4
_SHEET_FRAMES = 11  # and the sent picture: three full rows
_SAY_EVERY_S = 5.0


@dataclass
class Film:
    """A film's making: what it took, and the frames to show of it."""

    output: Path
    total: int  # frames that will come
    started_s: float = field(default_factory=time.perf_counter)
    first_frame_s: float = 0.0
    num_frames: int = 0
    shown: list[npt.NDArray[np.uint8]] = field(default_factory=list)  # spread over the film

    def write(self, batches: Iterator[Batch], fps: int) -> None:
        """Write an MP4 as the frames come, with a bar on stderr where that is a terminal, else a line now and then."""
        shown = set(video.spread(self.total, _SHEET_FRAMES))
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with video.Mp4Writer(self.output, fps) as writer, _progress() as progress:
            task = progress.add_task(self.output.name, total=self.total)
            said_s = time.perf_counter()
            for batch in batches:
                self.first_frame_s = self.first_frame_s or time.perf_counter()
                for index, pixels in zip(batch.frame_index.tolist(), batch.frames, strict=True):
                    writer.write(pixels)
                    if index in shown:
                        self.shown.append(pixels.copy())
                self.num_frames += len(batch.frames)
                progress.update(task, completed=self.num_frames)
                if progress.disable and time.perf_counter() - said_s >= _SAY_EVERY_S:
                    said_s = time.perf_counter()
                    print(f"{self.output.name}: {self.num_frames} of {self.total} frames", file=sys.stderr, flush=True)

    def closing_line(self) -> str:
        """The line that ends a run."""
        took_s = time.perf_counter() - self.started_s
        first_ms = 1000 * (self.first_frame_s - self.started_s)
        rate = self.num_frames / took_s
        return f"{self.output}: {self.num_frames} frames, {rate:.1f} frames/s, first frame after {first_ms:.0f} ms"


def stream_film(session: Session, asks: Iterable[Ask]) -> Iterator[Batch]:
    """Keep one request ahead of the one whose frames are read, so that the server need not wait for this process."""
    under_way: deque[Iterator[Batch]] = deque()
    for ask in asks:
        under_way.append(session.ask(ask.controls, ask.is_end))
        if len(under_way) > 1:
            yield from under_way.popleft()
    for batches in under_way:
        yield from batches


def write_contact_sheet(
    client: WorldClient, picture: bytes, film: Film, path: Path, truth: npt.NDArray[np.uint8] | None = None
) -> None:
    """Write a PNG that shows the picture as it was sent, cropped to the frames' size, and then what came back.

    Args:
        truth: [T, H, W, 3], what the camera should have seen; shown row by row under what came back.
    """
    height_px, width_px = film.shown[0].shape[:2]
    # The server reads it, so that the sheet shows what the world began from, in whatever form that came.
    sent = client.preprocess([picture], size=(height_px, width_px)).pixels[0]
    rows = [sent, *film.shown]
    if truth is not None:
        wanted = [truth[index] for index in (0, *video.spread(film.total, _SHEET_FRAMES))]
        # Whole rows, so that each frame stands above its own truth.
        rest = [np.full_like(sent, 255)] * (-len(rows) % _SHEET_COLUMNS)
        rows, wanted = rows + rest, wanted + rest
        places = range(0, len(rows), _SHEET_COLUMNS)
        rows = [each for at in places for row in (rows, wanted) for each in row[at : at + _SHEET_COLUMNS]]
    path.parent.mkdir(parents=True, exist_ok=True)
    video.contact_sheet(rows, path, _SHEET_COLUMNS)


def read_truth(path: Path, total: int) -> npt.NDArray[np.uint8]:
    """Read rendered frames of a walk: an .npy file, uint8 [T or more, H, W, 3].

    Args:
        total: T, the film's frames.

    Raises:
        InvalidInputError: if the file holds something else.
    """
    try:
        frames = open_npy(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"--truth: {path} cannot be read as an .npy file") from error
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or len(frames) < total:
        raise InvalidInputError(
            f"--truth: wanted uint8 [{total} or more, H, W, 3], got {frames.dtype} {list(frames.shape)}"
        )
    return frames


def _progress() -> Progress:
    """A bar on stderr; disabled where that is no terminal."""
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
