"""Sessions in many states, their snapshots, and files that somebody has changed."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import safetensors.torch
from worldmodel import snapshot
from worldmodel.snapshot_file import pack
from worldmodel.world import Controls

HEX_AT = len('{"__metadata__":{"format":"worldstream session 1","checksum":"') + 8  # where the checksum begins


def walk(first, num_poses=3, step=0.25):
    poses = np.tile(np.eye(4), (num_poses, 1, 1))
    poses[:, 2, 3] = step * np.arange(first, first + num_poses)
    return poses


def go(world, session, **controls):
    """One chunk: its frames, [n, H, W, 3]."""
    controls.setdefault("clip_step", 0.25 if "cam_to_world" in controls else None)
    chunk = world.next_chunk(session, Controls(**controls), lambda: None)
    session.commit(chunk.staged)
    return chunk.frames.numpy().copy()


def save(session, world):
    return np.concatenate(snapshot.take(session, world).pieces(world))


def load(data, world):
    opened = snapshot.open_snapshot(data, world.config, snapshot.most_bytes(world))
    snapshot.check(opened, world)
    return snapshot.restore(opened, world)


def contents(data):
    """The tensors, by the library that defines the format, and the document."""
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + length].tobytes())
    return safetensors.torch.load(data.tobytes()), json.loads(header["__metadata__"]["document"])


def changed(data, document=None, tensors=None, drop=()):
    """The same file with other contents and a right checksum."""
    old_tensors, old_document = contents(data)
    new = {**old_tensors, **(tensors or {})}
    return np.concatenate(
        pack({name: each for name, each in new.items() if name not in drop}, {**old_document, **(document or {})})
    )


def with_checksum(data):
    """The same bytes under the checksum that fits them."""
    text = data.tobytes()
    digest = hashlib.blake2b(text[:HEX_AT] + text[HEX_AT + 64 :], digest_size=32).hexdigest()
    return np.frombuffer(text[:HEX_AT] + digest.encode() + text[HEX_AT + 64 :], np.uint8)
