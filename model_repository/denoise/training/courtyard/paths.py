"""Walks in the yard of the courtyard world that never touch anything, as camera poses.

The rooms are seen through their doors and not entered: what is to be learnt is one place that a picture tells apart.
Units of motion are those of a key press: one latent frame of a held key is STRIDE_M forward or YAW_STEP_DEG of turn;
a latent frame is four pixel frames. Letters: L latent frames, T = 1 + 4 (L - 1) pixel frames.
A walk says where the camera is; what it sees is the renderer's business.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import scene

STRIDE_M = 0.25
YAW_STEP_DEG = 6.0
PITCH_STEP_DEG = 4.0
PITCH_LIMIT_DEG = 16.0  # walks look about, but the world is learnt from eye level
CLEARANCE_M = 0.45
OUTER_CLEARANCE_M = 0.8  # nearer than this a picture is one flat colour
FRAMES_PER_LATENT = 4


@dataclass(frozen=True)
class Stance:
    """Where a walker stands and looks: metres; yaw to the right, pitch up."""

    x: float
    z: float
    yaw_deg: float
    pitch_deg: float = 0.0


@dataclass(frozen=True)
class Motion:
    """What a walker wants to do in one latent frame: metres in its own directions, degrees."""

    forward_m: float = 0.0
    right_m: float = 0.0
    yaw_deg: float = 0.0
    pitch_deg: float = 0.0


Plan = Generator[Motion, Stance, None]  # yields a wish each latent frame, for ever; is sent where that led


def is_free(x: float, z: float) -> bool:
    """Whether a walker may stand here: CLEARANCE_M from everything, OUTER_CLEARANCE_M from the yard's walls."""
    x_min, x_max, z_min, z_max = scene.YARD
    if min(x - x_min, x_max - x, z - z_min, z_max - z) < OUTER_CLEARANCE_M:
        return False
    for box in scene.WALLS + scene.FURNITURE:
        is_overhead = box.high[1] < -scene.EYE_HEIGHT_M
        gap = math.hypot(max(box.low[0] - x, x - box.high[0], 0.0), max(box.low[2] - z, z - box.high[2], 0.0))
        if not is_overhead and gap < CLEARANCE_M:
            return False
    rounds = [(p.x, p.z, p.radius) for p in scene.PILLARS] + [(b.x, b.z, b.radius) for b in scene.BALLS]
    return all(math.hypot(x - cx, z - cz) >= radius + CLEARANCE_M for cx, cz, radius in rounds)


def move(stance: Stance, motion: Motion) -> Stance:
    """Look first, then walk on the ground, like a held key does."""
    yaw_deg = stance.yaw_deg + motion.yaw_deg
    pitch_deg = max(-PITCH_LIMIT_DEG, min(PITCH_LIMIT_DEG, stance.pitch_deg + motion.pitch_deg))
    sin, cos = math.sin(math.radians(yaw_deg)), math.cos(math.radians(yaw_deg))
    return Stance(
        stance.x + motion.forward_m * sin + motion.right_m * cos,
        stance.z + motion.forward_m * cos - motion.right_m * sin,
        yaw_deg,
        pitch_deg,
    )


def pose(stance: Stance) -> NDArray[np.float64]:
    """[4, 4] camera to world, at eye height."""
    sin, cos = math.sin(math.radians(stance.yaw_deg)), math.cos(math.radians(stance.yaw_deg))
    up, level = math.sin(math.radians(stance.pitch_deg)), math.cos(math.radians(stance.pitch_deg))
    turn = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
    tilt = np.array([[1, 0, 0], [0, level, -up], [0, up, level]])
    matrix = np.eye(4)
    matrix[:3, :3] = turn @ tilt
    matrix[:3, 3] = (stance.x, -scene.EYE_HEIGHT_M, stance.z)
    return matrix


def frame_poses(walk: list[Stance]) -> NDArray[np.float64]:
    """Poses at every pixel frame, evenly between those of the latent frames. [L stances] -> [1 + 4 (L - 1), 4, 4]."""
    rows = np.array([(s.x, s.z, s.yaw_deg, s.pitch_deg) for s in walk])
    at = np.arange((len(walk) - 1) * FRAMES_PER_LATENT + 1) / FRAMES_PER_LATENT
    columns = [np.interp(at, np.arange(len(walk)), column) for column in rows.T]
    return np.stack([pose(Stance(*row)) for row in zip(*columns, strict=True)])


def follow_keys(start: Stance, actions: list[str]) -> list[Stance]:
    """Where held keys ("w", "wl", "": one entry a latent frame) lead, walls or not: one stance more than entries."""
    walk = [start]
    for pressed in actions:
        walk.append(move(walk[-1], _held(pressed)))
    return walk


def sample_start(rng: np.random.Generator) -> Stance:
    """A free place, seldom facing a wall from near by."""
    x_min, x_max, z_min, z_max = scene.YARD
    while True:
        stance = Stance(rng.uniform(x_min, x_max), rng.uniform(z_min, z_max), rng.uniform(-180, 180))
        view_m = rng.uniform(1.0, 3.0)
        ahead = move(stance, Motion(forward_m=view_m))
        if is_free(stance.x, stance.z) and is_free(ahead.x, ahead.z):
            return stance


def sample_walk(rng: np.random.Generator, num_latent_frames: int, style: str | None = None) -> list[Stance]:
    """A random walk of one style (a key of STYLES; None draws one), L stances long.

    A step that would touch something is not taken: the walker turns on the spot instead, always to the same side
    until the way is free.
    """
    if style is None:
        style = str(rng.choice(list(STYLES), p=list(_SHARES.values())))
    walk, side = [sample_start(rng)], 0.0
    plan = STYLES[style](rng, walk[0])
    motion = next(plan)
    while len(walk) < num_latent_frames:
        after = move(walk[-1], motion)
        if is_free(after.x, after.z):
            side = 0.0
        else:
            side = side or math.copysign(YAW_STEP_DEG, motion.yaw_deg or _either(rng, 1.0))
            after = move(walk[-1], replace(motion, forward_m=0.0, right_m=0.0, yaw_deg=side))
        walk.append(after)
        motion = plan.send(after)
    return walk


_KEYS = {
    "w": 0.22, "wl": 0.14, "wj": 0.14, "l": 0.12, "j": 0.12, "s": 0.06, "a": 0.03, "d": 0.03, "": 0.05,
    "wa": 0.01, "wd": 0.01, "sl": 0.015, "sj": 0.015, "al": 0.01, "dj": 0.01,
    "i": 0.01, "k": 0.01, "wi": 0.005, "wk": 0.005,
}  # fmt: skip


def _held(keys: str) -> Motion:
    """What the keys wasd (move) and ijkl (look) do in one latent frame; two moves are not faster than one."""
    forward, right = ("w" in keys) - ("s" in keys), ("d" in keys) - ("a" in keys)
    stride_m = STRIDE_M / max(1.0, math.hypot(forward, right))
    yaw, pitch = ("l" in keys) - ("j" in keys), ("i" in keys) - ("k" in keys)
    return Motion(forward * stride_m, right * stride_m, yaw * YAW_STEP_DEG, pitch * PITCH_STEP_DEG)


def _either(rng: np.random.Generator, size: float) -> float:
    return size if rng.random() < 0.5 else -size


def _keyboard(rng: np.random.Generator, here: Stance) -> Plan:
    """Keys held for a while, then others."""
    while True:
        motion = _held(str(rng.choice(list(_KEYS), p=np.array(list(_KEYS.values())) / sum(_KEYS.values()))))
        for _ in range(int(rng.integers(2, 9))):
            yield motion


def _smooth(rng: np.random.Generator, here: Stance) -> Plan:
    """Speeds that wander, like a hand on a stick."""
    wish = rng.normal(size=4)
    while True:
        wish = 0.85 * wish + math.sqrt(1 - 0.85**2) * rng.normal(size=4)
        forward_m = float(np.clip(0.14 + 0.12 * wish[0], -0.25, 0.35))
        motion = Motion(forward_m, 0.05 * float(wish[1]), 3.5 * float(wish[2]), 0.8 * float(wish[3]))
        yield motion


def _turning(rng: np.random.Generator, here: Stance) -> Plan:
    """On the spot, at a steady rate, sometimes back again."""
    rate_deg = _either(rng, rng.choice([YAW_STEP_DEG, rng.uniform(2, 9)]))
    while True:
        for _ in range(int(rng.integers(8, 40))):
            yield Motion(yaw_deg=rate_deg)
        rate_deg = -rate_deg


def _errand(rng: np.random.Generator, here: Stance) -> Plan:
    """To a place, then to the next."""
    while True:
        place = sample_start(rng)
        for _ in range(40):  # something may stand in the way
            here = yield _towards(here, place)
            if math.hypot(here.x - place.x, here.z - place.z) < 0.5:
                break


def _towards(here: Stance, place: Stance) -> Motion:
    wanted_deg = math.degrees(math.atan2(place.x - here.x, place.z - here.z))
    error_deg = (wanted_deg - here.yaw_deg + 180) % 360 - 180
    yaw_deg = max(-YAW_STEP_DEG, min(YAW_STEP_DEG, error_deg))
    return Motion(forward_m=STRIDE_M if abs(error_deg) < 20 else 0.0, yaw_deg=yaw_deg)


def _standing(rng: np.random.Generator, here: Stance) -> Plan:
    while True:
        yield Motion()


STYLES: dict[str, Callable[[np.random.Generator, Stance], Plan]] = {
    "keyboard": _keyboard,
    "smooth": _smooth,
    "errand": _errand,
    "turning": _turning,
    "standing": _standing,
}
_SHARES = {"keyboard": 0.44, "smooth": 0.22, "errand": 0.16, "turning": 0.15, "standing": 0.03}
