"""Cameras for tests."""

import numpy as np


def pose(x=0.0, y=0.0, z=0.0, yaw_deg=0.0):
    """A camera that has turned to its right by yaw_deg and stands at x, y, z."""
    a = np.radians(yaw_deg)
    out = np.eye(4)
    out[:3, :3] = [[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]]
    out[:3, 3] = x, y, z
    return out
