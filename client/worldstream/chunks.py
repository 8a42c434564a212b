"""Chunk arithmetic: a chunk is c latent frames; each makes four frames, but the session's first makes one."""

FRAMES_PER_LATENT = 4


def num_frames(num_chunks: int, chunk_latent_frames: int) -> int:
    """Frames in the first `num_chunks` chunks of a session: 1 + 4 (c - 1) in the first, 4 c in each later one."""
    if num_chunks == 0:
        return 0
    return 1 + FRAMES_PER_LATENT * (num_chunks * chunk_latent_frames - 1)
