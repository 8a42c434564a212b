"""Render the demo's walk: where it starts as a picture, and what the camera should see under these keys.

python model_repository/denoise/training/draw_walk.py --actions ".wwwlll" --truth demo/truth.npy
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from commands import count, run_command
from courtyard.dataset import VARIANT_NAMES
from courtyard.paths import Stance, follow_keys, frame_poses, pose
from courtyard.renderer import default_intrinsics, render
from numpy.typing import NDArray
from PIL import Image
from worldstream.errors import InvalidInputError
from worldstream.paths import actions_from_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "1"))
from worldmodel.config import EMBEDDED

START = Stance(x=2.1, z=-0.96, yaw_deg=-110.0)  # of client/pictures/start.png
PICTURE_PX = (384, 640)  # height and width: four times the world's, as a camera's picture is larger


def main(arguments: Sequence[str] | None = None) -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actions", default="", help='keys, one entry a latent frame: ".ww[wl]l"')
    parser.add_argument("--prompt", default="day", help=f"a look that it names: {', '.join(VARIANT_NAMES)}")
    parser.add_argument("--chunks", type=count, default=1, help="at least so many; the camera stands where keys end")
    parser.add_argument("--picture", type=Path, help="a PNG of the start")
    parser.add_argument("--truth", type=Path, help="an .npy of the frames: uint8 [T, H, W, 3]")
    options = parser.parse_args(arguments)
    if not (options.picture or options.truth):
        parser.error("wanted --picture or --truth, or both: what to write; got neither")
    if options.picture:
        Image.fromarray(_rendered(pose(START)[None], PICTURE_PX, "day")[0]).save(options.picture, "PNG")
    if options.truth:
        walk = served_walk(START, actions_from_text(options.actions), options.chunks)
        size = (EMBEDDED.height_px, EMBEDDED.width_px)
        np.save(options.truth, _rendered(frame_poses(walk), size, look_of(options.prompt)))


def look_of(prompt: str) -> str:
    """The first look that a prompt names; day if none."""
    words = re.findall(r"\w+", prompt.casefold())
    return next((word for word in words if word in VARIANT_NAMES), VARIANT_NAMES[0])


def served_walk(start: Stance, actions: list[str], num_chunks: int = 1) -> list[Stance]:
    """Where the camera is at each latent frame of the chunks that these keys fill.

    The first latent frame is the picture itself: keys that come with it move the camera together with the next ones.
    """
    size = EMBEDDED.chunk_latent_frames
    total = size * max(num_chunks, -(-len(actions) // size))
    walk = follow_keys(start, actions + [""] * (total - len(actions)))
    return [start, *walk[2 : total + 1]]


def _rendered(poses: NDArray[np.float64], size: tuple[int, int], look: str) -> NDArray[np.uint8]:
    frames: NDArray[np.uint8] = render(torch.from_numpy(poses), default_intrinsics(1, *size), *size, look).numpy()
    return frames


if __name__ == "__main__":
    run_command(main, InvalidInputError)
