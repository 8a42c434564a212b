"""Pictures of the courtyard world: ray casting in torch, the same on every run, antialiased.

Letters: T frames of H x W pixels, R rays, K solids. Poses are camera-to-world in OpenCV axes (x right, y down,
z forward), metres; intrinsics are fx, fy, cx, cy in pixels, where the centre of the top left pixel is (0.5, 0.5).

Two things make the pictures exact below the pixel. Textures are filtered analytically: each ray carries the size of its
pixel on the surface, and stripes are integrated over it. Silhouettes and edges are found by what each pixel's
centre ray hit; where neighbours differ, the pixel is cast again with EDGE_SAMPLES x EDGE_SAMPLES rays.
This file knows light and geometry; what stands where is in scene.py.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import scene

EDGE_SAMPLES = 3
TILE_RAYS = 16384  # larger tiles fall out of the cache, smaller ones pay for each operation
SOFTNESS = 0.16  # no stripe changes colour in less than this part of a period
HORIZONTAL_FOV_DEG = 79.0  # of the published camera data: 2 * atan(416 / 503)
NOTHING = 1e9

Vector = tuple[Tensor, Tensor, Tensor]

_BOXES = scene.WALLS + scene.FURNITURE
_NAMES = list(scene.MATERIALS)
_NUM_SOLIDS = len(_BOXES) + len(scene.PILLARS) + len(scene.BALLS)
_FLOOR, _OUTER, _SKY = _NUM_SOLIDS, _NUM_SOLIDS + 1, _NUM_SOLIDS + 2


def default_intrinsics(num_frames: int, height_px: int, width_px: int) -> Tensor:
    """Square pixels, centred, HORIZONTAL_FOV_DEG wide. Returns [T, 4] float64: fx, fy, cx, cy."""
    focal_px = width_px / 2 / math.tan(math.radians(HORIZONTAL_FOV_DEG / 2))
    row = torch.tensor([focal_px, focal_px, width_px / 2, height_px / 2], dtype=torch.float64)
    return row.repeat(num_frames, 1)


def render(
    cam_to_world: Tensor,
    intrinsics: Tensor,
    height_px: int,
    width_px: int,
    variants: str | Sequence[str] = "day",
    *,
    edge_samples: int = EDGE_SAMPLES,
) -> Tensor:
    """Show what a camera in the courtyard world sees.

    Args:
        cam_to_world: [T, 4, 4] float, in the world of scene.py; the camera must be in free space.
        intrinsics: [T, 4] or [1, 4] float; fx, fy, cx, cy in pixels of a height_px x width_px picture.
        variants: names from scene.VARIANTS, one for all frames or one for each.
        edge_samples: rays along a side of a pixel at an edge; 1 turns antialiasing of silhouettes off.

    Returns:
        [T, H, W, 3] uint8 RGB, on the device of cam_to_world.

    Raises:
        ValueError: on an unknown variant or a wrong shape.
    """
    num_frames = cam_to_world.shape[0]
    if cam_to_world.shape != (num_frames, 4, 4):
        raise ValueError(f"cam_to_world: wanted [T, 4, 4], got {list(cam_to_world.shape)}")
    if intrinsics.ndim != 2 or intrinsics.shape[1] != 4 or intrinsics.shape[0] not in (1, num_frames):
        raise ValueError(f"intrinsics: wanted [{num_frames}, 4] or [1, 4], got {list(intrinsics.shape)}")
    names = [variants] * num_frames if isinstance(variants, str) else list(variants)
    unknown = sorted(set(names) - set(scene.VARIANTS))
    if unknown or len(names) != num_frames:
        known = list(scene.VARIANTS)
        raise ValueError(f"variants: wanted {num_frames} of {known}, got {len(names)}, unknown {unknown}")
    device = cam_to_world.device
    poses = cam_to_world.to(torch.float32)[:, :3]
    lenses = intrinsics.to(device=device, dtype=torch.float32).expand(num_frames, 4)
    lights = torch.stack([_light(name, device) for name in names])
    with torch.inference_mode():
        # Frame by frame: a frame's rays and their temporaries stay small whatever T is.
        frames = [
            _render_frame(_Camera(poses[t], lenses[t], lights[t]), height_px, width_px, edge_samples)
            for t in range(num_frames)
        ]
        return torch.stack(frames)


class _Camera(NamedTuple):
    pose: Tensor  # [3, 4] camera to world
    lens: Tensor  # [4] fx, fy, cx, cy
    light: Tensor  # [22] a row of the variants' table


@lru_cache
def _light(name: str, device: torch.device) -> Tensor:
    return torch.tensor(scene.VARIANTS[name].row(), dtype=torch.float32, device=device)


def _render_frame(camera: _Camera, height_px: int, width_px: int, edge_samples: int) -> Tensor:
    device = camera.pose.device
    rows = torch.arange(height_px, device=device, dtype=torch.float32) + 0.5
    columns = torch.arange(width_px, device=device, dtype=torch.float32) + 0.5
    v, u = (grid.reshape(-1) for grid in torch.meshgrid(rows, columns, indexing="ij"))
    in_view = _in_view(camera, height_px, width_px)
    colour, surface = _trace_tiles(camera, in_view, u, v, pixel_size=1.0)
    if edge_samples > 1:
        edges = _edges(surface.view(height_px, width_px)).reshape(-1).nonzero().squeeze(1)
        steps = (torch.arange(edge_samples, device=device, dtype=torch.float32) + 0.5) / edge_samples - 0.5
        dv, du = (grid.reshape(-1) for grid in torch.meshgrid(steps, steps, indexing="ij"))
        fine_u = (u[edges, None] + du).reshape(-1)
        fine_v = (v[edges, None] + dv).reshape(-1)
        seen = torch.unique(surface // 8)
        fine, _ = _trace_tiles(camera, seen[seen < _NUM_SOLIDS], fine_u, fine_v, pixel_size=1.0 / edge_samples)
        colour[:, edges] = fine.view(3, len(edges), edge_samples**2).mean(dim=2)
    picture = colour.T.reshape(height_px, width_px, 3)
    return (picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8)


def _in_view(camera: _Camera, height_px: int, width_px: int) -> Tensor:
    """Numbers of the solids that may show in the picture, by their bounding spheres."""
    spheres = _bounds(camera.pose.device)
    x, y, z = ((spheres[:, :3] - camera.pose[:, 3]) @ camera.pose[:, :3]).unbind(1)
    fx, fy, cx, cy = camera.lens.unbind()
    inside = z > -spheres[:, 3]
    for side, focal, room in ((x, fx, width_px - cx), (-x, fx, cx), (y, fy, height_px - cy), (-y, fy, cy)):
        inside &= (side * focal - z * room) / torch.hypot(focal, room) < spheres[:, 3]
    return inside.nonzero().squeeze(1)


def _edges(surface: Tensor) -> Tensor:
    """Mark the pixels that have a neighbour (of 4) which shows another surface. [H, W] bool.

    Four are enough: a straight edge that crosses a pixel always parts its centre from that of one of the four.
    """
    marked = torch.zeros_like(surface, dtype=torch.bool)
    across, along = surface[1:] != surface[:-1], surface[:, 1:] != surface[:, :-1]
    marked[1:] |= across
    marked[:-1] |= across
    marked[:, 1:] |= along
    marked[:, :-1] |= along
    return marked


def _trace_tiles(camera: _Camera, candidates: Tensor, u: Tensor, v: Tensor, pixel_size: float) -> tuple[Tensor, Tensor]:
    tile = TILE_RAYS if u.device.type == "cpu" else max(1, u.numel())
    parts = [
        _trace(camera, candidates, u_tile, v_tile, pixel_size)
        for u_tile, v_tile in zip(u.split(tile), v.split(tile), strict=True)
    ]
    return torch.cat([part[0] for part in parts], dim=1), torch.cat([part[1] for part in parts])


def _trace(camera: _Camera, candidates: Tensor, u: Tensor, v: Tensor, pixel_size: float) -> tuple[Tensor, Tensor]:
    """Follow one ray through each (u, v). Returns colour [3, R] and surface [R], equal numbers on one smooth face."""
    pose, lens, light = camera
    fx, fy, cx, cy = lens.unbind()
    rotation, origin = pose[:, :3], pose[:, 3].unbind()
    across, down = (u - cx) / fx, (v - cy) / fy
    x, y, z = (_not_zero(row[0] * across + row[1] * down + row[2]) for row in rotation)
    direction = (x, y, z)
    depth, solid = _nearest(origin, direction, candidates)
    x, y, z = (o + depth * d for o, d in zip(origin, direction, strict=True))
    point = (x, y, z)
    normal, face = _normals(point, direction, solid)
    surface = solid * 8 + face

    # A pixel's footprint on the surface: how far the hit moves when u or v moves by one pixel.
    facing = _dot(normal, direction)
    facing = torch.where(facing.abs() < 1e-3, torch.full_like(facing, -1e-3), facing)
    footprints = []
    for axis, focal in ((0, fx), (1, fy)):
        right = [rotation[i, axis] * (pixel_size / focal) for i in range(3)]
        slope = _dot(normal, right) / facing
        x, y, z = (depth * (right[i] - slope * direction[i]) for i in range(3))
        footprints.append((x, y, z))

    albedo = _albedo(surface, point, footprints)
    ground = _lit(albedo, point, normal, solid, light)
    sky = _sky(direction, light)
    return torch.where(solid == _SKY, sky, ground), surface


def _dot(a: Vector, b: Sequence[Tensor] | Sequence[float]) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _not_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1e-6, torch.full_like(x, 1e-6), x)


@lru_cache
def _bounds(device: torch.device) -> Tensor:
    """[K, 4]: centre and radius of a sphere around each solid."""
    rows = []
    for box in _BOXES:
        half = [(high - low) / 2 for low, high in zip(box.low, box.high, strict=True)]
        rows.append([*(low + h for low, h in zip(box.low, half, strict=True)), math.hypot(*half)])
    half_height = scene.WALL_HEIGHT_M / 2
    rows += [[p.x, -half_height, p.z, math.hypot(half_height, p.radius)] for p in scene.PILLARS]
    rows += [[b.x, b.y, b.z, b.radius] for b in scene.BALLS]
    return torch.tensor(rows, dtype=torch.float32, device=device)


def _nearest(origin: Sequence[Tensor], direction: Vector, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Depth along each ray (in units of its direction) and number of the first thing that it meets."""
    dx, dy, dz = direction
    floor = -origin[1] / dy
    depth = torch.where(floor > 0, floor, NOTHING)
    solid = torch.full_like(depth, _FLOOR, dtype=torch.long)
    outer = _outer_wall(origin, direction)
    above = origin[1] + outer * dy < -scene.WALL_HEIGHT_M
    depth, solid = _closer(depth, solid, torch.where(above, NOTHING, outer), _OUTER)
    inverse = (1 / dx, 1 / dy, 1 / dz)
    level = dx * dx + dz * dz
    for number in candidates.tolist():
        if number < len(_BOXES):
            other = _box(_BOXES[number], origin, inverse)
        elif number < len(_BOXES) + len(scene.PILLARS):
            other = _pillar(scene.PILLARS[number - len(_BOXES)], origin, direction, level)
        else:
            other = _ball(scene.BALLS[number - len(_BOXES) - len(scene.PILLARS)], origin, direction, level + dy * dy)
        depth, solid = _closer(depth, solid, other, number)
    sky = depth >= NOTHING
    # The sky gets a finite depth, so that arithmetic on its rays (thrown away later) stays finite.
    return torch.where(sky, 1.0, depth), torch.where(sky, _SKY, solid)


def _closer(depth: Tensor, solid: Tensor, other_depth: Tensor, other: int) -> tuple[Tensor, Tensor]:
    return torch.minimum(depth, other_depth), torch.where(other_depth < depth, other, solid)


def _outer_wall(origin: Sequence[Tensor], direction: Vector) -> Tensor:
    x_min, x_max, z_min, z_max = scene.WHOLE
    to_x = (torch.where(direction[0] > 0, x_max, x_min) - origin[0]) / direction[0]
    to_z = (torch.where(direction[2] > 0, z_max, z_min) - origin[2]) / direction[2]
    return torch.minimum(to_x, to_z)


def _box(box: scene.Box, origin: Sequence[Tensor], inverse: Vector) -> Tensor:
    near, far = [], []
    for i in range(3):
        middle = ((box.low[i] + box.high[i]) / 2 - origin[i]) * inverse[i]
        half = (box.high[i] - box.low[i]) / 2 * inverse[i].abs()
        near.append(middle - half)
        far.append(middle + half)
    enter = torch.maximum(torch.maximum(near[0], near[1]), near[2])
    leave = torch.minimum(torch.minimum(far[0], far[1]), far[2])
    return torch.where((enter < leave) & (enter > 0), enter, NOTHING)


def _pillar(pillar: scene.Pillar, origin: Sequence[Tensor], direction: Vector, level: Tensor) -> Tensor:
    dx, dy, dz = direction
    x, z = origin[0] - pillar.x, origin[2] - pillar.z
    b = x * dx + z * dz
    inside = b * b - level * (x * x + z * z - pillar.radius**2)
    depth = (-b - inside.clamp(min=0).sqrt()) / level
    below_top = origin[1] + depth * dy > -scene.WALL_HEIGHT_M
    return torch.where((inside > 0) & (depth > 0) & below_top, depth, NOTHING)


def _ball(ball: scene.Ball, origin: Sequence[Tensor], direction: Vector, square: Tensor) -> Tensor:
    dx, dy, dz = direction
    x, y, z = origin[0] - ball.x, origin[1] - ball.y, origin[2] - ball.z
    b = x * dx + y * dy + z * dz
    inside = b * b - square * (x * x + y * y + z * z - ball.radius**2)
    depth = (-b - inside.clamp(min=0).sqrt()) / square
    return torch.where((inside > 0) & (depth > 0), depth, NOTHING)


@lru_cache
def _shapes(device: torch.device) -> Tensor:
    """[solids + 3, 6]: the low and high corners of boxes; centre and 1 / radius of round things (pillars: no y)."""
    rows = [[*b.low, *b.high] for b in _BOXES]
    rows += [[p.x, 0.0, p.z, 1 / p.radius, 0.0, 1 / p.radius] for p in scene.PILLARS]
    rows += [[b.x, b.y, b.z, 1 / b.radius, 1 / b.radius, 1 / b.radius] for b in scene.BALLS]
    x_min, x_max, z_min, z_max = scene.WHOLE
    far = 1e3  # the floor and the outer walls are boxes too, seen from above and from the inside
    rows += [[-far, 0.0, -far, far, far, far], [x_min, -far, z_min, x_max, far, z_max], [0.0] * 6]
    return torch.tensor(rows, dtype=torch.float32, device=device)


def _normals(point: Vector, direction: Vector, solid: Tensor) -> tuple[Vector, Tensor]:
    """Unit normals towards the camera, and the face: 0..5 = -x, +x, -y, +y, -z, +z side of a box; 0 if round."""
    shape = _shapes(solid.device)[solid].unbind(1)
    is_round = (solid >= len(_BOXES)) & (solid < _NUM_SOLIDS)
    # The face that a hit lies on is the one it is nearest to.
    closest, face = (point[0] - shape[0]).abs(), torch.zeros_like(solid)
    for number in range(1, 6):
        distance = (point[number // 2] - shape[number // 2 + 3 * (number % 2)]).abs()
        face = torch.where(distance < closest, number, face)
        closest = torch.minimum(closest, distance)
    face = torch.where(is_round | (solid == _SKY), 0, face)
    normal = []
    for i in range(3):
        flat = torch.where(face // 2 == i, -torch.sign(direction[i]), 0.0)
        normal.append(torch.where(is_round, (point[i] - shape[i]) * shape[i + 3], flat))
    return (normal[0], normal[1], normal[2]), face


@lru_cache
def _materials(device: torch.device) -> tuple[Tensor, Tensor]:
    """Table of materials [M, 21], and which of them each surface (solid * 8 + face) has."""
    index = torch.zeros((_SKY + 1) * 8, dtype=torch.long)
    for number, box in enumerate(_BOXES):
        sides = {0: box.west, 1: box.east, 4: box.south, 5: box.north}
        for face in range(6):
            index[number * 8 + face] = _NAMES.index(sides.get(face) or box.material)
    for number, thing in enumerate(scene.PILLARS + scene.BALLS, start=len(_BOXES)):
        index[number * 8] = _NAMES.index(thing.material)
    table = torch.tensor([material.row() for material in scene.MATERIALS.values()], dtype=torch.float32)
    return table.to(device), index.to(device)


def _placed(surface: Tensor, point: Vector) -> Tensor:
    """Material numbers; the floor and the outer walls change theirs from room to room."""
    index = _materials(surface.device)[1][surface]
    is_room, is_west = point[2] > scene.ROOMS_START_Z, point[0] < 0
    for number, side, outdoors, west, east in _PLACES:
        here = torch.where(is_room, torch.where(is_west, west, east), outdoors)
        index = torch.where(surface == number * 8 + side, here, index)
    return index


def _place(number: int, side: int, outdoors: str, west: str, east: str) -> tuple[int, int, int, int, int]:
    return number, side, _NAMES.index(outdoors), _NAMES.index(west), _NAMES.index(east)


_PLACES = (
    _place(_FLOOR, 2, "yard_floor", "west_floor", "east_floor"),
    _place(_OUTER, 0, "yard_west", "west_west", "west_west"),
    _place(_OUTER, 1, "yard_east", "east_east", "east_east"),
    _place(_OUTER, 4, "yard_south", "yard_south", "yard_south"),
    _place(_OUTER, 5, "west_north", "west_north", "east_north"),
)


def _albedo(surface: Tensor, point: Vector, footprints: Sequence[Vector]) -> Tensor:
    row = _materials(surface.device)[0][_placed(surface, point)].unbind(1)
    stripes = _square_wave(row[6:10], point, footprints) * _square_wave(row[10:14], point, footprints)
    turns = _dot(point, row[17:20]) + row[20]
    drift = torch.sin(2 * math.pi * turns)
    share = 0.5 + 0.5 * stripes
    return torch.stack([row[3 + c] + (row[c] - row[3 + c]) * share + row[14 + c] * drift for c in range(3)])


def _square_wave(wave: Sequence[Tensor], point: Vector, footprints: Sequence[Vector]) -> Tensor:
    """A square wave between -1 and 1, averaged over the footprint of each pixel."""
    phase = _dot(point, wave) + wave[3]
    along_u, along_v = (_dot(footprint, wave).abs() for footprint in footprints)
    width = (along_u + along_v).clamp(min=SOFTNESS)
    return (_ramp(phase + width / 2) - _ramp(phase - width / 2)) / width


def _ramp(phase: Tensor) -> Tensor:
    """The integral of a square wave of period 1 that is +1 in its first half."""
    return 0.5 - (phase - phase.floor() - 0.5).abs()


def _lit(albedo: Tensor, point: Vector, normal: Vector, solid: Tensor, light: Tensor) -> Tensor:
    ambient, sun, room, lamplight, snow = light[9:12], light[12:15], light[15:18], light[18:21], light[21]
    is_room = point[2] > scene.ROOMS_START_Z
    facing_sun = _dot(normal, _SUN).clamp(min=0)
    facing_up = (-normal[1]).clamp(min=0)
    lamp = _lamps(point, normal)
    shade = _contact_shade(point, normal, solid)
    is_up_outdoors = torch.where(is_room, 0.0, snow * (facing_up * 1.5 - 0.35).clamp(0, 1))
    channels = []
    for c in range(3):
        outdoors = ambient[c] * (0.86 + 0.14 * facing_up) + sun[c] * facing_sun
        indoors = room[c] + lamplight[c] * lamp
        whitened = albedo[c] + (_SNOW[c] - albedo[c]) * is_up_outdoors
        channels.append(whitened * torch.where(is_room, indoors, outdoors) * shade)
    return torch.stack(channels)


_SUN = tuple(s / math.sqrt(sum(x * x for x in scene.SUN_DIRECTION)) for s in scene.SUN_DIRECTION)
_SNOW = (0.93, 0.95, 0.98)


def _lamps(point: Vector, normal: Vector) -> Tensor:
    """Light from the lamp under the ceiling of the room that a point is in: 1 at a metre, falling with distance."""
    east = point[0] > 0
    x, y, z = (torch.where(east, scene.ROOM_LAMPS[1][i], scene.ROOM_LAMPS[0][i]) - point[i] for i in range(3))
    square = x * x + y * y + z * z
    facing = (x * normal[0] + y * normal[1] + z * normal[2]).clamp(min=0) * square.rsqrt()
    return (0.35 + 0.65 * facing) * 3.2 / (1.6 + square)


@lru_cache
def _feet(device: torch.device) -> Tensor:
    """[F, 3, 1]: x, z and radius of what stands on the floor, for its soft shadow."""
    feet = [[p.x, p.z, p.radius] for p in scene.PILLARS]
    for box in scene.FURNITURE:
        feet.append([(box.low[0] + box.high[0]) / 2, (box.low[2] + box.high[2]) / 2, (box.high[0] - box.low[0]) / 2])
    feet += [[b.x, b.z, b.radius * 0.7] for b in scene.BALLS]
    return torch.tensor(feet, dtype=torch.float32, device=device)[:, :, None]


def _contact_shade(point: Vector, normal: Vector, solid: Tensor) -> Tensor:
    """Soft darkness in corners: on the floor beside things and outer walls, on walls just above the floor."""
    feet = _feet(solid.device)
    gap = (torch.hypot(point[0] - feet[:, 0], point[2] - feet[:, 1]) - feet[:, 2]).min(0).values.clamp(min=0)
    x_min, x_max, z_min, z_max = scene.WHOLE
    wall = torch.minimum(
        torch.minimum(point[0] - x_min, x_max - point[0]), torch.minimum(point[2] - z_min, z_max - point[2])
    ).clamp(min=0)
    on_floor = 1 - 0.45 * torch.exp(gap * -3.0) - 0.25 * torch.exp(wall * -2.0)
    on_wall = 1 - 0.30 * torch.exp(point[1].clamp(max=0) * 2.5)
    return torch.where(solid == _FLOOR, on_floor, torch.where(normal[1].abs() < 0.9, on_wall, 1.0))


def _sky(direction: Vector, light: Tensor) -> Tensor:
    zenith, horizon, around_sun = light[0:3], light[3:6], light[6:9]
    length = (direction[0] ** 2 + direction[1] ** 2 + direction[2] ** 2).rsqrt()
    up = (-direction[1] * length).clamp(0, 1)
    height = 1 - (1 - up) ** 3  # most of the change is near the horizon
    towards_sun = _dot(direction, _SUN) * length
    glow = (0.5 + 0.5 * towards_sun) ** 3
    return torch.stack([horizon[c] + (zenith[c] - horizon[c]) * height + around_sun[c] * glow for c in range(3)])
