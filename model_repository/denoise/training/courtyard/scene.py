"""What stands where in the courtyard world, in what colours, under which light. Numbers only; no picture is made here.

Axes are those of the tensor contract (OpenCV): x right, y *down*, z forward; metres. The floor is y = 0, so a
height h is y = -h. Seen from above, with z up the page:

        z  9.6 +---------------+---------------+
               |  west room        east room   |     both roofed, joined by a door
           4.8 +----   --------+--------   ----+     each with a door to the yard
               |    o                     o    |
               |            [pedestal]         |     the yard is open to the sky
               |    o                     o    |
          -4.5 +-------------------------------+
              x -4.5           0              4.5

Colours are wide, soft and saturated on purpose: a small model can learn them, and no two places look alike. There is
no fine texture anywhere, because the codec keeps 16 numbers for each 8 x 8 x 4 block of pixels.
"""

from dataclasses import dataclass

Colour = tuple[float, float, float]  # RGB in [0, 1]
Wave = tuple[float, float, float, float]  # cycles per metre along x, y, z, then phase in cycles

YARD = (-4.5, 4.5, -4.5, 4.5)  # x_min, x_max, z_min, z_max
WHOLE = (-4.5, 4.5, -4.5, 9.6)
WALL_HEIGHT_M = 3.0
EYE_HEIGHT_M = 1.4
ROOMS_START_Z = 4.65  # half way through the wall between the yard and the rooms
ROOM_LAMPS = ((-2.3, -2.6, 7.2), (2.3, -2.6, 7.2))

FLAT: Wave = (0.0, 0.0, 0.0, 0.25)  # a square wave at its constant +1
STILL: Wave = (0.0, 0.0, 0.0, 0.0)  # a sine at its constant 0


@dataclass(frozen=True)
class Material:
    """Two colours in stripes (one wave) or in a checker (two waves), and a third one that comes and goes slowly."""

    light: Colour
    dark: Colour
    wave: Wave = FLAT
    cross_wave: Wave = FLAT
    drift: Colour = (0.0, 0.0, 0.0)
    drift_wave: Wave = STILL

    def row(self) -> list[float]:
        return [*self.light, *self.dark, *self.wave, *self.cross_wave, *self.drift, *self.drift_wave]


@dataclass(frozen=True)
class Box:
    """An axis-aligned box; one material for all faces, or others for the faces that look to -z, +z, -x, +x."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    material: str
    south: str | None = None
    north: str | None = None
    west: str | None = None
    east: str | None = None


@dataclass(frozen=True)
class Pillar:
    x: float
    z: float
    radius: float
    material: str


@dataclass(frozen=True)
class Ball:
    x: float
    y: float
    z: float
    radius: float
    material: str


MATERIALS: dict[str, Material] = {
    # The yard: dark red in the south, bright yellow in the east, dark blue in the west, green in the north.
    "yard_floor": Material(
        (0.86, 0.74, 0.52),
        (0.66, 0.40, 0.28),
        (0.25, 0, 0, 0.1),
        (0, 0, 0.25, 0.1),
        (0.12, -0.02, -0.16),
        (0.055, 0, 0.04, 0.0),
    ),
    "yard_south": Material((0.78, 0.16, 0.14), (0.42, 0.05, 0.12), (0.28, 0, 0, 0.05)),
    "yard_east": Material((0.98, 0.84, 0.22), (0.93, 0.58, 0.10), (0, 0, 0.30, 0.0)),
    "yard_west": Material((0.16, 0.42, 0.86), (0.08, 0.16, 0.52), (0, 0.33, 0.22, 0.0)),
    "yard_north": Material(
        (0.30, 0.70, 0.36), (0.12, 0.44, 0.26), (0, 0.66, 0, 0.0), FLAT, (-0.06, 0.10, 0.14), (0.10, 0, 0, 0.0)
    ),
    # The west room: purple and magenta over a dark teal floor.
    "west_floor": Material((0.16, 0.46, 0.48), (0.07, 0.26, 0.34), (0, 0, 0.42, 0.0)),
    "west_west": Material((0.86, 0.28, 0.62), (0.62, 0.12, 0.46), (0, 0, 0.42, 0.1)),
    "west_north": Material((0.52, 0.30, 0.78), (0.32, 0.14, 0.56), (0.42, 0, 0, 0.0)),
    "west_south": Material((0.94, 0.72, 0.84), (0.80, 0.50, 0.70), (0, 0.66, 0, 0.0)),
    "west_east": Material((0.72, 0.62, 0.94), (0.52, 0.42, 0.84), (0, 0.4, 0.3, 0.0)),
    # The east room: orange and lime over a cream floor.
    "east_floor": Material((0.92, 0.88, 0.74), (0.74, 0.70, 0.50), (0.42, 0, 0, 0.25)),
    "east_east": Material((0.96, 0.46, 0.14), (0.78, 0.26, 0.08), (0, 0, 0.42, 0.0)),
    "east_north": Material((0.62, 0.86, 0.24), (0.38, 0.64, 0.16), (0.42, 0, 0, 0.2)),
    "east_south": Material((0.30, 0.82, 0.80), (0.14, 0.58, 0.62), (0, 0.66, 0, 0.0)),
    "east_west": Material((0.98, 0.90, 0.52), (0.92, 0.74, 0.34), (0, 0.4, -0.3, 0.0)),
    "ceiling": Material((0.90, 0.88, 0.84), (0.90, 0.88, 0.84)),
    "roof_edge": Material((0.55, 0.28, 0.20), (0.55, 0.28, 0.20)),
    "door_frame": Material((0.95, 0.92, 0.86), (0.95, 0.92, 0.86)),
    # Things.
    "stone": Material((0.88, 0.88, 0.90), (0.70, 0.72, 0.78), (0, 0.5, 0, 0.0)),
    "gold": Material((1.0, 0.78, 0.16), (0.94, 0.60, 0.08), (0, 0.9, 0, 0.0)),
    "crate": Material((0.24, 0.74, 0.78), (0.14, 0.54, 0.62), (0, 0.6, 0, 0.0)),
    "red_ball": Material((0.92, 0.20, 0.22), (0.92, 0.20, 0.22)),
    "blue_ball": Material((0.20, 0.46, 0.96), (0.20, 0.46, 0.96)),
    "pillar_white": Material((0.96, 0.95, 0.92), (0.86, 0.34, 0.30), (0, 0.5, 0, 0.25)),
    "pillar_blue": Material((0.30, 0.54, 0.94), (0.94, 0.94, 0.96), (0, 0.5, 0, 0.25)),
    "pillar_pink": Material((0.95, 0.50, 0.70), (0.60, 0.18, 0.42), (0, 0.5, 0, 0.25)),
    "pillar_black": Material((0.18, 0.18, 0.24), (0.95, 0.80, 0.30), (0, 0.5, 0, 0.25)),
    "pillar_green": Material((0.10, 0.40, 0.30), (0.10, 0.40, 0.30)),
    "room_block": Material((0.96, 0.86, 0.30), (0.90, 0.66, 0.16), (0, 0.8, 0, 0.0)),
    "room_block_blue": Material((0.22, 0.34, 0.80), (0.14, 0.20, 0.56), (0, 0.8, 0, 0.0)),
}

_TOP, _DOOR_TOP = -WALL_HEIGHT_M, -2.2


def _yard_wall(x_min: float, x_max: float, y_min: float, y_max: float, room: str) -> Box:
    return Box((x_min, y_min, 4.5), (x_max, y_max, 4.8), "door_frame", south="yard_north", north=f"{room}_south")


def _room_wall(z_min: float, z_max: float, y_min: float, y_max: float) -> Box:
    low, high = (-0.15, y_min, z_min), (0.15, y_max, z_max)
    return Box(low, high, "door_frame", west="west_east", east="east_west")


WALLS: tuple[Box, ...] = (
    _yard_wall(-4.6, -3.1, _TOP, 0.1, "west"),
    _yard_wall(-3.1, -1.5, _TOP, _DOOR_TOP, "west"),
    _yard_wall(-1.5, 0.0, _TOP, 0.1, "west"),
    _yard_wall(0.0, 1.5, _TOP, 0.1, "east"),
    _yard_wall(1.5, 3.1, _TOP, _DOOR_TOP, "east"),
    _yard_wall(3.1, 4.6, _TOP, 0.1, "east"),
    _room_wall(4.7, 6.4, _TOP, 0.1),
    _room_wall(6.4, 8.0, _TOP, _DOOR_TOP),
    _room_wall(8.0, 9.7, _TOP, 0.1),
    Box((-4.6, _TOP - 0.25, 4.4), (4.6, _TOP, 9.7), "ceiling", south="roof_edge"),
)
FURNITURE: tuple[Box, ...] = (
    Box((-0.5, -0.7, -0.5), (0.5, 0.1, 0.5), "stone"),
    Box((3.2, -1.0, -4.2), (4.2, 0.1, -3.2), "crate"),
    Box((-4.3, -0.9, 8.4), (-3.3, 0.1, 9.4), "room_block"),
    Box((3.3, -0.9, 8.4), (4.3, 0.1, 9.4), "room_block_blue"),
)
PILLARS: tuple[Pillar, ...] = (
    Pillar(-2.7, -2.2, 0.32, "pillar_white"),
    Pillar(2.7, -2.2, 0.32, "pillar_blue"),
    Pillar(-2.9, 1.7, 0.32, "pillar_pink"),
    Pillar(2.9, 1.7, 0.32, "pillar_black"),
    Pillar(2.6, 6.9, 0.28, "pillar_green"),
)
BALLS: tuple[Ball, ...] = (
    Ball(0.0, -1.2, 0.0, 0.5, "gold"),
    Ball(-3.7, -0.55, -3.7, 0.55, "blue_ball"),
    Ball(-1.0, -0.5, 8.7, 0.5, "red_ball"),
)


@dataclass(frozen=True)
class Variant:
    """One look of the same place. All colours multiply or replace RGB in [0, 1]; light may exceed 1."""

    zenith: Colour
    horizon: Colour
    glow: Colour  # added to the sky around the sun, and to what the sun shines on
    ambient: Colour
    sun: Colour
    room: Colour  # ambient light in the rooms
    lamp: Colour  # light of the lamp in each room, at one metre
    snow: float  # how white the ground and everything that faces up is, outdoors

    def row(self) -> list[float]:
        colours = (self.zenith, self.horizon, self.glow, self.ambient, self.sun, self.room, self.lamp)
        return [channel for colour in colours for channel in colour] + [self.snow]


SUN_DIRECTION = (0.62, -0.55, -0.56)  # towards the sun: in the south-east
# Dim enough that little is clipped, and that no look's light and dark are so far apart that it alone decides a mean.
VARIANTS: dict[str, Variant] = {
    "day": Variant(
        (0.20, 0.43, 0.74),
        (0.64, 0.74, 0.79),
        (0.27, 0.22, 0.09),
        (0.78, 0.77, 0.76),
        (0.39, 0.35, 0.27),
        (0.74, 0.71, 0.67),
        (0.35, 0.33, 0.27),
        0.0,
    ),
    "dusk": Variant(
        (0.38, 0.18, 0.41),
        (0.88, 0.47, 0.25),
        (0.36, 0.22, 0.02),
        (0.85, 0.56, 0.47),
        (0.50, 0.23, 0.04),
        (0.83, 0.52, 0.40),
        (0.45, 0.25, 0.11),
        0.0,
    ),
    "night": Variant(
        (0.03, 0.05, 0.22),
        (0.12, 0.18, 0.46),
        (0.10, 0.12, 0.16),
        (0.28, 0.38, 0.74),
        (0.10, 0.13, 0.22),
        (0.34, 0.28, 0.46),
        (0.66, 0.48, 0.22),
        0.0,
    ),
    "snow": Variant(
        (0.52, 0.64, 0.81),
        (0.69, 0.77, 0.90),
        (0.05, 0.04, 0.02),
        (0.72, 0.82, 1.00),
        (0.12, 0.12, 0.13),
        (0.65, 0.78, 1.00),
        (0.25, 0.28, 0.34),
        0.75,
    ),
}
