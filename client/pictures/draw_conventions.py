"""Draws conventions.png for the README: the same camera with its axes named as each program names them."""

from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

RIGHT, UP, AHEAD = np.eye(3)
RED, GREEN, BLUE, GREY = "#c62828", "#2e7d32", "#1565c0", "#616161"
# What x, y and z are called by; what is written below.
PANELS = {
    "opencv, colmap": (RIGHT, -UP, AHEAD, "what the server takes\ncolmap: world to camera"),
    "opengl, blender, nerf": (RIGHT, UP, -AHEAD, "looks along -z\ncamera to world"),
    "unreal": (AHEAD, RIGHT, UP, "left-handed, in cm\ncamera to world"),
}
# The camera is seen from behind, a little from the left and above: how right, up and ahead lie on the page.
PAGE = np.array([[1.0, -0.12], [0.0, 1.0], [0.62, 0.42]])


def on_page(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Right, up and ahead [..., 3] to page coordinates [..., 2]."""
    return points @ PAGE


def draw_camera(axes: Axes) -> None:
    """A body, and the pyramid that it looks into."""
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)]) * (0.62, 0.4)
    far = np.column_stack([corners, np.full(5, 1.35)])
    axes.fill(*on_page(far).T, color="#fff3c4", zorder=1)
    axes.plot(*on_page(far).T, color=GREY, lw=1, zorder=2)
    for corner in far[:4]:
        axes.plot(*on_page(np.stack([np.zeros(3), corner])).T, color=GREY, lw=1, zorder=2)
    body = np.column_stack([corners * 0.45, np.full(5, -0.35)])
    front = body + np.array([0, 0, 0.35])
    for near, there in zip(body[:4], front[:4], strict=True):
        axes.plot(*on_page(np.stack([near, there])).T, color="black", lw=1, zorder=3)
    axes.plot(*on_page(front).T, color="black", lw=1, zorder=3)
    axes.fill(*on_page(body).T, color="#e0e0e0", ec="black", lw=1, zorder=4)


def draw_panel(axes: Axes, title: str, x: object, y: object, z: object, below: str) -> None:
    """One camera and its three axes."""
    draw_camera(axes)
    for name, axis, colour in (("x", x, RED), ("y", y, GREEN), ("z", z, BLUE)):
        tip = on_page(1.15 * np.asarray(axis, float))
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=tuple(tip), xytext=(0, 0), arrowprops=arrow, zorder=6)
        across, up = tip * (1 + 0.2 / np.linalg.norm(tip))
        axes.text(across, up, name, color=colour, size=15, weight="bold", ha="center", va="center", zorder=7)
    axes.set_title(title, family="monospace", size=12, weight="bold", color="black", pad=6)
    axes.text(0.15, -1.8, below, size=10.5, color="#212121", ha="center", va="center")
    axes.set(xlim=(-1.4, 1.75), ylim=(-2.1, 1.45), aspect="equal")
    axes.axis("off")


def main() -> None:
    """Write the picture beside this file."""
    mpl.use("agg")
    figure = Figure(figsize=(8.2, 3.4), dpi=100, facecolor="white", layout="constrained")
    for axes, (title, (x, y, z, below)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        draw_panel(axes, title, x, y, z, below)
    drawn = BytesIO()
    figure.savefig(drawn)
    with Image.open(drawn) as picture:  # a palette is enough, and a third of the bytes
        picture.convert("RGB").quantize(48).save(Path(__file__).with_name("conventions.png"), optimize=True)


if __name__ == "__main__":
    main()
