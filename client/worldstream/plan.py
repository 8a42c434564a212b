"""Splits a film into requests of a few chunks each: the next request is what lets the server go on. Pure.

T is the number of latent frames of the whole film, c the number in a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldstream.errors import InvalidInputError
from worldstream.requests import Controls, make_controls

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Ask:
    """One request of a film."""

    controls: Controls
    is_end: bool


def chunks_that_fit(num_latent_frames: int, chunk_latent_frames: int, name: str) -> int:
    """Whole chunks in a path of so many poses.

    Raises:
        InvalidInputError: if there is not even one.
    """
    if num_latent_frames < chunk_latent_frames:
        raise InvalidInputError(f"{name}: one chunk needs {chunk_latent_frames} poses, it holds {num_latent_frames}")
    return num_latent_frames // chunk_latent_frames


def plan_film(
    num_chunks: int,
    chunks_per_request: int,
    chunk_latent_frames: int,
    cam_to_world: Float32 | None = None,
    actions: Sequence[str] | None = None,
    intrinsics: Float32 | None = None,
) -> list[Ask]:
    """Cut a film's controls into requests.

    Args:
        num_chunks: of the whole film; controls past its end are left out.
        chunks_per_request: at most so many chunks in one request.
        chunk_latent_frames: c.
        cam_to_world: [T or more, 4, 4].
        actions: any number of entries; the camera stands still after the last.
        intrinsics: [1, 4], or [T or more, 4] next to `cam_to_world`.

    Returns:
        The requests in order; the last one ends the session.
    """
    if num_chunks < 1 or chunks_per_request < 1:
        raise InvalidInputError(f"chunks: wanted 1 or more, got {num_chunks} in requests of {chunks_per_request}")
    if actions is not None:
        actions = [*actions, *[""] * (num_chunks * chunk_latent_frames - len(actions))]
    asks = []
    for first in range(0, num_chunks, chunks_per_request):
        last = min(first + chunks_per_request, num_chunks)
        span = slice(first * chunk_latent_frames, last * chunk_latent_frames)
        asks.append(
            Ask(
                make_controls(
                    cam_to_world=None if cam_to_world is None else cam_to_world[span],
                    actions=None if actions is None else actions[span],
                    num_chunks=last - first,
                    intrinsics=intrinsics[span] if intrinsics is not None and len(intrinsics) > 1 else intrinsics,
                ),
                is_end=last == num_chunks,
            )
        )
    return asks
