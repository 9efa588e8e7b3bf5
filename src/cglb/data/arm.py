"""A simulated robot arm."""

from __future__ import annotations

import numpy as np

from cglb.data.dataset import Array, Dataset

__all__ = ["robot_arm"]

# The arm, joint by joint. The links get shorter towards the tip, so outer joints matter less.
_LENGTHS = (0.0, 0.9, 0.6, 0.45, 0.3, 0.25, 0.15, 0.1)  # along x
_OFFSETS = (0.6, 0.0, 0.2, 0.0, 0.2, 0.0, 0.1, 0.0)  # along z
_TWISTS = (1, 0, 1, -1, 1, -1, 1, 0)  # about x, in right angles
_TARGET = (0.8, 0.5, 0.9)
_DISTANCE_STD = 0.5673  # of the noise-free distance, over 4 million random poses


def robot_arm(n: int = 1000, noise: float = 0.1, seed: int = 0) -> Dataset:
    """The distance of the tip of a robot arm with eight joints from a target: X [n, 8], y [n].

    The problem of Delve's "kin" family, for a different arm. Inputs are the joint angles in radians,
    uniform on [-pi/2, pi/2]. Joint i at angle t moves everything attached to it by the
    Denavit-Hartenberg step

        T_i = Rot_z(t) Trans_z(offset_i) Trans_x(length_i) Rot_x(twist_i),

    so the tip is T_1 ... T_8 applied to the origin, and y is its distance from a fixed point plus noise.
    The function is smooth but not linear. Each joint matters less than the one before: the first takes
    part in half of the variance, the last in less than 1 %.

    Args:
        n: rows.
        noise: standard deviation of the Gaussian noise, relative to that of the distance over all poses.
        seed: decides angles and noise.
    """
    if n < 1 or not 0 <= noise < np.inf:
        raise ValueError(f"n={n}, noise={noise}: robot_arm needs n >= 1 and a finite noise >= 0.")
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi / 2, np.pi / 2, size=(n, 8))
    distance = np.linalg.norm(_tip(angles) - np.array(_TARGET), axis=1)
    y = distance + noise * _DISTANCE_STD * rng.standard_normal(n)
    return Dataset("robot_arm", angles, y, tuple(f"joint{i}" for i in range(1, 9)), "distance")


def _tip(angles: Array) -> Array:
    """The position [n, 3] of the tip for joint angles [n, 8], link by link from the tip inwards."""
    x, y, z = np.zeros((3, len(angles)))
    links = list(zip(angles.T, _LENGTHS, _OFFSETS, _TWISTS, strict=True))
    for angle, length, offset, twist in reversed(links):
        if twist:  # a quarter turn about x swaps y and z exactly
            y, z = -twist * z, twist * y
        x, z = x + length, z + offset
        x, y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
    return np.stack([x, y, z], axis=1)
