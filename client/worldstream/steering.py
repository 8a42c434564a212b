"""What moves a film's camera, from the command line's words and files. Knows nothing of the server.

T is the number of latent frames of the whole film, c the number in a chunk.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldstream import conventions, paths
from worldstream.errors import InvalidInputError
from worldstream.plan import chunks_that_fit

MADE_PATH_CHUNKS = 6
_MADE_PATHS = {
    "walk": lambda num: paths.walk(num),
    "pan": lambda num: paths.pan(num, deg_per_frame=4.0),
    "orbit": lambda num: paths.orbit(num, radius=3.0, deg_per_frame=4.0),
    "stand": lambda num: paths.stand(num),
}


@dataclass(frozen=True, eq=False)
class Steering:
    """What moves the camera, and how long the film gets."""

    num_chunks: int
    cam_to_world: npt.NDArray[np.float32] | None = None  # [T or more, 4, 4]
    actions: list[str] | None = None
    is_from_file: bool = False
    note: str = ""  # what the person should know of this choice


def choose_steering(
    path: str | None,
    actions: str | None,
    rate: paths.PoseRate,
    chunks: int | None,
    chunk_latent_frames: int,
    convention: conventions.Convention = "opencv",
) -> Steering:
    """Decide how the camera moves.

    Args:
        path: the name of a made path, or a file of poses (.npy, or COLMAP's images.txt); default a walk where there are
            no actions.
        actions: text for `paths.actions_from_text`.
        rate: what a file of poses holds one of.
        chunks: the film's length; default what the file or the actions fill.
        chunk_latent_frames: c.
        convention: what a file's poses are written in.

    Raises:
        InvalidInputError: if both a path and actions are given, or one of them cannot be used.
    """
    if chunks is not None and chunks < 1:
        raise InvalidInputError(f"--chunks: wanted 1 or more, got {chunks}")
    make_path = _MADE_PATHS.get(path or "walk")
    if convention != "opencv" and make_path is not None:
        raise InvalidInputError("--pose-convention: is for a file of poses, and --path names none")
    if actions is not None:
        if path is not None:
            raise InvalidInputError("--path, --actions: one of them steers, both came")
        keys = paths.actions_from_text(actions)
        return Steering(chunks or -(-len(keys) // chunk_latent_frames), actions=keys)
    if make_path is not None:
        num_chunks = chunks or MADE_PATH_CHUNKS
        return Steering(num_chunks, make_path(num_chunks * chunk_latent_frames))
    file = Path(str(path))
    if file.suffix != ".npy" and not file.is_file():
        raise InvalidInputError(f"--path: wanted walk, pan, orbit, stand or a .npy file, got {path}")
    if file.name == "images.txt" and convention != "colmap":
        raise InvalidInputError(f"--pose-convention: wanted colmap, whose file images.txt is, got {convention}")
    return _steering_from_file(file, rate, chunks, chunk_latent_frames, convention)


def intrinsics_rows(
    file: Path, rate: paths.PoseRate, steering: Steering, sizes: tuple[tuple[int, int], tuple[int, int]] | None = None
) -> npt.NDArray[np.float32]:
    """Read fx, fy, cx, cy for a film.

    Args:
        file: a .npy file, [4] or [N, 4].
        rate: what the file holds one row for.
        steering: what the rows go with.
        sizes: width, height of the picture that the file was made for, and of the picture sent; None when they are one.

    Returns:
        [1 or T, 4] float32, in pixels of the picture sent: one row for each pose where poses come from a file.

    Raises:
        InvalidInputError: if the file cannot be used, or holds neither one row nor one for each pose.
    """
    rows = paths.load_intrinsics(file, rate)
    if sizes is not None:
        rows = paths.scale_intrinsics(rows, *sizes)
    if len(rows) == 1 or steering.cam_to_world is None or not steering.is_from_file:
        return rows[:1]
    if len(rows) != len(steering.cam_to_world):
        raise InvalidInputError(
            f"{file.name}: wanted 1 row or one for each of {len(steering.cam_to_world)} poses, got {len(rows)}"
        )
    return rows


def parse_scale(text: str, steering: Steering) -> float:
    """Units of the poses in one model unit: a number, or "auto" for the longest step of a pose file.

    "auto" is LingBot-World's rule for its own paths, whose unit is arbitrary: the longest step becomes one model unit.
    """
    if text != "auto":
        try:
            return float(text)
        except ValueError:
            raise InvalidInputError(f"--translation-scale: wanted a number or auto, got {text}") from None
    if steering.cam_to_world is None or not steering.is_from_file:
        raise InvalidInputError("--translation-scale: auto reads a file of poses, and --path names none")
    return paths.longest_step(steering.cam_to_world)


def parse_size(option: str, text: str) -> tuple[int, int]:
    """Width and height from an option's text, such as 832x480."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise InvalidInputError(f"{option}: wanted WIDTHxHEIGHT such as 832x480, got {text}")
    return int(width), int(height)


def _steering_from_file(
    file: Path,
    rate: paths.PoseRate,
    chunks: int | None,
    chunk_latent_frames: int,
    convention: conventions.Convention,
) -> Steering:
    poses = conventions.seen_from_first(paths.load_poses(file, rate, convention))
    num_held = chunks_that_fit(len(poses), chunk_latent_frames, file.name)
    note = ""
    if chunks is not None and chunks > num_held:
        note = (
            f"{file.name} holds {len(poses)} poses, {chunks} chunks need {chunks * chunk_latent_frames}; "
            f"the film ends after {num_held} chunks"
        )
    advice = conventions.advice(poses)
    if advice:
        note = f"{note}; {advice} (--pose-convention)" if note else f"{file.name}: {advice} (--pose-convention)"
    return Steering(min(chunks or num_held, num_held), poses.astype(np.float32), is_from_file=True, note=note)
