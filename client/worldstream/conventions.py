"""Camera poses of other programs, turned into what the server takes. Pure NumPy; knows nothing of the server.

The server takes camera-to-world matrices whose camera looks along z, with x to the right and y down (OpenCV's axes):

| convention | the camera's axes | the matrix | unit |
|---|---|---|---|
| opencv | x right, y down, z forward | camera to world | any |
| opengl, nerf, blender | x right, y up, looks along -z | camera to world | any |
| unreal | x forward, y right, z up; left-handed | camera to world | cm, becomes m |
| colmap | x right, y down, z forward | world to camera | any |

The axes of the *world* do not matter: the server uses how the camera moves from its first pose on, which is the same
however the world around it is turned. So Blender's world stays z-up here. Unreal's is mirrored, as no turn makes a
left-handed world right-handed.

N is the number of poses. A wrong convention cannot be seen in the numbers; see `advice` for what can be guessed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from worldstream.arrays import as_numbers
from worldstream.errors import InvalidInputError

Float64: TypeAlias = npt.NDArray[np.float64]
Convention: TypeAlias = Literal["opencv", "opengl", "nerf", "blender", "unreal", "colmap"]

CONVENTIONS: tuple[str, ...] = get_args(Convention)
CM = 0.01  # in metres
_TOLERANCE = 1e-3  # the server's own
_BOTTOM = (0.0, 0.0, 0.0, 1.0)
# Columns: OpenCV's right, down and forward, said in the axes of the other program's camera.
_OPENGL_AXES = np.diag([1.0, -1.0, -1.0, 1.0])
_UNREAL_AXES = np.array([[0.0, 0, 1, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


def to_opencv(poses: npt.ArrayLike, convention: Convention, is_world_to_camera: bool | None = None) -> Float64:
    """Turn poses into camera-to-world matrices with OpenCV's axes, for `cam_to_world`.

    Args:
        poses: [N, 4, 4] or [4, 4]. Columns are the camera's axes in the world, then its position; row-major programs
            (Unreal's FMatrix) print the transposed matrix.
        convention: what they are written in; "nerf" and "blender" are other names for "opengl".
        is_world_to_camera: whether they are that way round; None is as the convention has it, true for "colmap" only.

    Returns:
        [N, 4, 4] float64.

    Raises:
        InvalidInputError: if one is not a rotation and a translation, naming it.
    """
    if convention not in CONVENTIONS:
        raise InvalidInputError(f"convention: wanted one of {', '.join(CONVENTIONS)}, got {convention!r}")
    rigid = _checked(poses)
    if is_world_to_camera is None:
        is_world_to_camera = convention == "colmap"
    if is_world_to_camera:
        rigid = _inverse(rigid)
    if convention in ("opengl", "nerf", "blender"):
        return rigid @ _OPENGL_AXES  # from the right: the camera's axes change, not the world's
    if convention == "unreal":
        rigid = _UNREAL_AXES.T @ rigid @ _UNREAL_AXES
        rigid[:, :3, 3] *= CM
    return rigid


def matrices_from_quaternions(qvec: npt.ArrayLike, tvec: npt.ArrayLike) -> Float64:
    """Matrices [N, 4, 4] from COLMAP's numbers; theirs are world to camera, so `to_opencv(..., "colmap")` comes next.

    Args:
        qvec: [N, 4] or [4]: w, x, y, z, of any length but 0.
        tvec: [N, 3] or [3].

    Raises:
        InvalidInputError: for other shapes, numbers that are not finite, or a quaternion of length 0.
    """
    q, t = np.atleast_2d(as_numbers("qvec", qvec, np.float64), as_numbers("tvec", tvec, np.float64))
    if q.ndim != 2 or q.shape[1] != 4 or t.shape != (len(q), 3):
        raise InvalidInputError(f"qvec, tvec: wanted [N, 4] and [N, 3], got {list(q.shape)} and {list(t.shape)}")
    length = np.linalg.norm(q, axis=1)
    for row in np.flatnonzero(~np.isfinite(length) | (length < 1e-12) | ~np.isfinite(t).all(axis=1))[:1]:
        raise InvalidInputError(f"qvec, tvec: row {row}: wanted finite numbers and a quaternion that is not 0")
    w, x, y, z = (q / length[:, None]).T
    matrices = np.tile(np.eye(4), (len(q), 1, 1))
    matrices[:, 0, :3] = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], axis=1)
    matrices[:, 1, :3] = np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], axis=1)
    matrices[:, 2, :3] = np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], axis=1)
    matrices[:, :3, 3] = t
    return matrices


def read_colmap_images(path: str | os.PathLike[str]) -> tuple[Float64, list[str]]:
    """Read COLMAP's images.txt.

    Returns:
        World-to-camera matrices [N, 4, 4] and the pictures' names, both in the order of the names.

    Raises:
        InvalidInputError: if the file cannot be read or is not of that form, naming the line.
    """
    name = Path(path).name
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"{name}: cannot read it: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{name}: wanted COLMAP's images.txt, a text file") from error
    rows = sorted(_colmap_rows(name, text), key=lambda row: row[0])
    if not rows:
        raise InvalidInputError(f"{name}: wanted COLMAP's images.txt, it names no picture")
    numbers = np.array([row[1] for row in rows])
    try:
        return matrices_from_quaternions(numbers[:, :4], numbers[:, 4:]), [row[0] for row in rows]
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error}") from error


def seen_from_first(cam_to_world: Float64) -> Float64:
    """The same path in the world of its first camera, [N, 4, 4].

    Far from the origin of a world, such as one in geographic coordinates, float32 has no digits left for small steps:
    do this before poses are sent. A session's poses are all of one world, so make the whole path at once.
    """
    return _inverse(cam_to_world[:1]) @ cam_to_world


def advice(cam_to_world: Float64) -> str:
    """What a person should look at in a path, [N, 4, 4] with OpenCV's axes; "" for nothing.

    Walking backwards is allowed, so this is a guess and no error: the axes of OpenGL and world-to-camera matrices both
    turn an ordinary walk into one that goes backwards.
    """
    steps = np.linalg.norm(np.diff(cam_to_world[:, :3, 3], axis=0), axis=1)
    ahead = (_inverse(cam_to_world[:-1]) @ cam_to_world[1:])[:, 2, 3]
    moves = steps > 1e-6 * steps.max(initial=0.0)
    if moves.sum() < 3 or np.mean(ahead[moves] < -0.5 * steps[moves]) < 0.9:
        return ""
    return (
        "the camera goes backwards nearly all the way; if it should not, its poses may have other axes (OpenGL's, "
        "Blender's) or be world to camera (COLMAP's)"
    )


def _colmap_rows(name: str, text: str) -> Iterator[tuple[str, list[float]]]:
    """A picture's name, and its quaternion and translation: two lines a picture, of which the second may be empty."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.startswith("#")]
    for (number, line), (next_number, points) in zip(lines[::2], [*lines[1::2], (0, "")], strict=False):
        if not line.strip() and not points.strip():
            continue  # lines at the end
        words = line.split(maxsplit=9)
        try:
            values = [float(word) for word in words[1:8]]
        except ValueError:
            values = []
        if len(words) < 10 or len(values) < 7:
            raise InvalidInputError(
                f"{name}: line {number}: wanted IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, and every second line a "
                "picture's points, empty or not"
            )
        if len(points.split()) % 3:
            raise InvalidInputError(f"{name}: line {next_number}: wanted a picture's points, three numbers each")
        yield words[9], values


def _checked(poses: npt.ArrayLike) -> Float64:
    rigid = as_numbers("poses", poses, np.float64)
    rigid = rigid[np.newaxis] if rigid.shape == (4, 4) else rigid
    if rigid.ndim != 3 or rigid.shape[1:] != (4, 4) or len(rigid) == 0:
        raise InvalidInputError(f"poses: wanted [N, 4, 4] or [4, 4], got {list(rigid.shape)}")
    for index, pose in enumerate(rigid):
        if not np.isfinite(pose).all():
            raise InvalidInputError(f"pose {index} holds a number that is not finite")
        if not _is_rigid(pose):
            hint = "; it looks transposed, with its translation in the bottom row" if _is_rigid(pose.T) else ""
            determinant, bottom = np.linalg.det(pose[:3, :3]), " ".join(f"{value:.4g}" for value in pose[3])
            raise InvalidInputError(
                f"pose {index}: wanted a rotation (orthonormal within {_TOLERANCE}, det = 1) and the bottom row "
                f"0 0 0 1, got det = {determinant:.4g} and {bottom}{hint}"
            )
    return rigid


def _is_rigid(pose: Float64) -> bool:
    rotation = pose[:3, :3]
    return bool(
        np.abs(rotation @ rotation.T - np.eye(3)).max() <= _TOLERANCE
        and np.linalg.det(rotation) > 0
        and np.abs(pose[3] - _BOTTOM).max() <= _TOLERANCE
    )


def _inverse(rigid: Float64) -> Float64:
    inverse: Float64 = np.linalg.inv(rigid)
    return inverse
