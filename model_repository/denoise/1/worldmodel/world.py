"""The loaded world as one object: `start` a session from a picture, then `next_chunk` after `next_chunk`.

Ties camera, conditioner, cache, transformer, sampler and codec together. Knows no threads, no requests, no Triton. All
its methods run on one thread, the one that owns the device.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worldmodel import camera as cam
from worldmodel.codec import Codec
from worldmodel.compilation import Compilation
from worldmodel.conditioner import ChunkConditioning, condition_chunk
from worldmodel.config import PATCH, WorldConfig
from worldmodel.kv_cache import KVCache, Placement
from worldmodel.layers import rotary_table
from worldmodel.metrics import Counters
from worldmodel.picture_conditions import PictureConditions
from worldmodel.pixels import Picture, tensor_digest, to_device, to_uint8
from worldmodel.prompt import HashedWords, Vectors
from worldmodel.prompt_cache import PromptCache
from worldmodel.rays import camera_input
from worldmodel.sampler import predict, sample_chunk
from worldmodel.schedule import chunk_sigmas, has_fresh_noise
from worldmodel.session import Noise, PastChunk, Prompt, Session, Staged
from worldmodel.session_size import session_bytes
from worldmodel.step_cache import StepCache
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.streams import Decoding, Timings, beside_computing, streams_of
from worldmodel.transformer import Block, CausalWorldTransformer


@dataclass(frozen=True)
class Controls:
    """What steers one chunk. Either poses or actions, or neither; as many as the chunk has latent frames."""

    cam_to_world: cam.Array | None = None  # [T, 4, 4], the client's world
    actions: tuple[str, ...] | None = None
    intrinsics: cam.Array | None = None  # [T, 4], pixels of the sent picture
    clip_step: float | None = None  # longest step among all poses of the request
    prompt: str | Vectors | None = None  # switch to it from this chunk on
    is_recached: bool = False  # and write the past's keys and values again under it
    num_steps: int | None = None
    step_cache: StepCacheSettings | None = None


@dataclass(frozen=True)
class Chunk:
    """A chunk that is not yet committed: denoised, and on a GPU perhaps still being decoded."""

    staged: Staged
    decoding: Decoding

    @property
    def frames(self) -> Tensor:
        """[n, H, W, 3] uint8, on the device; waits for the decode."""
        return self.decoding.wait()

    @property
    def timings(self) -> Timings:
        """Where its time went; waits for the decode."""
        return self.decoding.timings()


class World:
    """A transformer, a codec and a prompt encoder that belong together."""

    def __init__(
        self,
        config: WorldConfig,
        transformer: CausalWorldTransformer,
        codec: Codec,
        device: torch.device,
        dtype: torch.dtype,
        conditioner_budget_bytes: int | None = None,
        picture_cache_bytes: int = 0,
        step_cache: StepCache | None = None,
        step_cache_settings: StepCacheSettings | None = None,
        compilation: Compilation | None = None,
        prompts: PromptCache | None = None,
    ) -> None:
        """Take the parts; `step_cache` is mounted on the transformer, its settings serve chunks without their own.

        Without `prompts`, words are hashed.
        """
        self.config = config
        self.device = device
        self.dtype = dtype
        self.streams = streams_of(device)
        self.transformer = transformer.eval().requires_grad_(False).place(device, dtype)
        self.codec = codec.place(device)
        # Taken once: a step cache that is mounted later swaps the transformer's own list during a forward.
        self.blocks: tuple[Block, ...] = tuple(self.transformer.blocks)  # type: ignore[arg-type]
        self.conditioner_budget_bytes = conditioner_budget_bytes
        self.step_cache = step_cache
        self.compilation = compilation or Compilation(is_on=False)
        self._step_cache_settings = step_cache_settings or StepCacheSettings()
        self.prompts = prompts or PromptCache(hashed_words(config), budget_bytes=0)
        self.counters = Counters()
        # Listed once: while a chunk runs, a step cache has other modules in the blocks' place.
        self._weights = sorted(
            (f"{part}.{name}", tensor)
            for part, module in (("transformer", self.transformer), ("codec", self.codec))
            for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers())
        )
        self.pictures = PictureConditions(self.codec, device, dtype, picture_cache_bytes, self.counters)

    @torch.inference_mode()
    def start(
        self,
        picture: Picture,
        prompt: str | Vectors = "",
        seed: int = 0,
        translation_scale: float | None = None,
        fit: str = "crop",
        size: tuple[int, int] | None = None,
    ) -> Session:
        """Make a session that stands at its picture.

        Args:
            picture: [H, W, 3] RGB of any size, on the host or on a device; fitted to the model's.
            prompt: a text, which is read on this thread, or its vectors.
            translation_scale: client units per model unit; None takes the configured rule.
            fit: "crop" or "stretch".
            size: height and width in px, one of `config.sizes`; None is the usual one.
        """
        config = self.config.at_size(size)
        scale = translation_scale
        if scale is None and config.translation_rule == "fixed":
            scale = config.translation_scale
        intrinsics = cam.default_intrinsics(config.height_px, config.width_px, config.horizontal_fov_deg)
        return Session(
            config,
            self.new_cache(config),
            self.pictures.condition_of(picture, fit, config),
            cam.start_camera(intrinsics, scale),
            self.encode_prompt(prompt),
            seed,
            (picture.shape[0], picture.shape[1]),
            fit,
        )

    @functools.cached_property
    def weights_digest(self) -> str:
        """128 bits that stand for every weight, as hexadecimal digits; any thread may ask.

        Made when first asked for: it reads all weights once, some 0.3 to 1 GB/s a core, and holds no chunk up.
        """

        def digest(item: tuple[str, Tensor]) -> bytes:
            with beside_computing(self.device):
                return tensor_digest(*item)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            digests = list(pool.map(digest, self._weights))
        return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()

    def session_bytes(self, size: tuple[int, int] | None = None) -> int:
        """Bytes of the tensors of one session at this size, known before it is made."""
        return session_bytes(self.config.at_size(size), self.codec, self.dtype)

    def new_cache(self, config: WorldConfig) -> KVCache:
        """An empty cache of this window, at this size."""
        transformer = config.transformer
        return KVCache(
            transformer.num_layers,
            transformer.num_heads,
            transformer.head_dim,
            config.tokens_per_frame,
            config.window_latent_frames,
            config.sink_latent_frames,
            self.device,
            self.dtype,
        )

    def encode_prompt(self, prompt: str | Vectors) -> Prompt:
        """Cross-attention keys and values of every layer."""
        vectors = self.prompts.encode(prompt) if isinstance(prompt, str) else prompt
        return self.prompt_from_vectors(to_device(torch.from_numpy(vectors), self.device))

    def prompt_from_vectors(self, vectors: Tensor) -> Prompt:
        """The same from token vectors [n, text_dim]."""
        context = self.transformer.embed_text(vectors.to(self.dtype)[None])
        pairs = [block.cross_attn.keys_values(context) for block in self.blocks]
        return Prompt(tuple(k for k, _ in pairs), tuple(v for _, v in pairs))

    @torch.inference_mode()
    def next_chunk(self, session: Session, controls: Controls, before_step: Callable[[], None]) -> Chunk:
        """Compute a session's next chunk, without changing the session.

        Args:
            controls: what steers it.
            before_step: called before every pass through the transformer; raises to give the chunk up.

        Returns:
            The chunk; `session.commit(chunk.staged)` makes it the session's own.

        Raises:
            InvalidInputError: a step count that this world does not serve, or a camera step out of all measure.
        """
        began = self.streams.mark()
        sigmas = chunk_sigmas(session.config, controls.num_steps)
        camera, views = self.steer(session, controls)
        prompt = session.prompt if controls.prompt is None else self.encode_prompt(controls.prompt)
        noise = session.noise.copy()
        cache = self.rewritten_cache(session, prompt, before_step) if controls.is_recached else session.cache
        placement = cache.stage(session.next_latent_frame, session.config.chunk_latent_frames)
        try:
            conditioning = self.camera_conditioning(views, session.config)
            conditioned = self.streams.mark()
            self.bind_chunk(session.config, cache, placement, prompt, conditioning)
            if self.step_cache is not None:
                self.step_cache.begin_chunk(controls.step_cache or self._step_cache_settings, len(sigmas))
            latent = self._sample(session, sigmas, noise, conditioning, before_step)
            is_finite = torch.isfinite(latent).all()
        finally:
            self.unbind_chunk()
        del conditioning  # its bytes are free for what comes now: on a CPU the decode, on a GPU the next chunk
        denoised = self.streams.mark()
        with self.streams.beside(latent):
            decode_began = self.streams.mark()
            frames, memory = self.codec.decode(latent.transpose(1, 2), session.decoder_memory)
            pixels = to_uint8(frames[0])
            decoded = self.streams.mark()
        # Looked at last: it waits for the denoising, and a GPU can begin to decode meanwhile. Nothing waits for the
        # decode here: once queued, it can only fail with the whole device.
        if not bool(is_finite):
            raise FloatingPointError("the chunk's latent is not finite")
        decoding = Decoding(pixels, began, conditioned, denoised, decode_began, decoded)
        past = PastChunk(session.next_latent_frame, latent, views)
        return Chunk(Staged(placement, memory, camera, prompt, noise, past, cache), decoding)

    def rewritten_cache(self, session: Session, prompt: Prompt, before_step: Callable[[], None]) -> KVCache:
        """The keys and values of all that the session still sees, as if it had had this prompt all along.

        A context pass a chunk, oldest first, into a cache of its own; each sees those before it. What has left the
        window is gone, so this is what a session would know that began with what is left. The session keeps its own
        cache until the chunk is committed: for so long it takes twice its bytes.
        """
        cache = self.new_cache(session.config)
        forward = None if self.step_cache is None else self.step_cache.context_pass
        for past in session.history:
            before_step()
            placement = cache.stage(past.first_frame, session.config.chunk_latent_frames)
            try:
                conditioning = self.camera_conditioning(past.views, session.config)
                self.bind_chunk(session.config, cache, placement, prompt, conditioning)
                condition = session.condition_from(past.first_frame)
                predict(self.transformer, self.blocks, past.latent, condition, 0.0, forward)
                self._count_pass(0, 0, conditioning)
            finally:
                self.unbind_chunk()
            cache.commit(placement)
        return cache

    def steer(self, session: Session, controls: Controls) -> tuple[cam.CameraState, cam.Views]:
        """Where the controls take a session's camera: the state after the chunk, and what its cameras see by."""
        config, state, is_first = session.config, session.camera, session.next_latent_frame == 0
        rows = np.tile(state.intrinsics, (config.chunk_latent_frames, 1))
        if controls.intrinsics is not None:
            model_px = (config.height_px, config.width_px)
            rows = cam.fit_intrinsics(controls.intrinsics, session.picture_px, model_px, session.fit)
        if controls.cam_to_world is not None:
            relative, state = cam.follow_poses(state, controls.cam_to_world, is_first)
        else:
            actions = controls.actions or ("",) * config.chunk_latent_frames
            relative, state = cam.follow_actions(state, actions, config, is_first)
        relative, state = cam.to_model_units(relative, state, config, controls.clip_step)
        # In model units as they were told: the state's are the client's, whose scale may be found only now.
        last = session.history[-1].views.cam_to_origin[-1] if session.history else np.eye(4)
        return cam.with_intrinsics(state, rows[-1]), cam.Views(relative, cam.followed(last, relative), rows)

    def camera_conditioning(self, views: cam.Views, config: WorldConfig) -> ChunkConditioning:
        """Scale and shift of every layer for what a chunk's cameras see; nothing is bound yet."""
        camera = camera_input(views, config, self.device)
        conditioning = condition_chunk(
            self.transformer,
            self.blocks,
            camera[None].to(self.dtype),
            self.conditioner_budget_bytes,
        )
        held = self.counters.conditioner_bytes = conditioning.held_bytes
        self.counters.conditioner_peak_bytes = max(self.counters.conditioner_peak_bytes, held)
        return conditioning

    def bind_chunk(
        self,
        config: WorldConfig,
        cache: KVCache,
        placement: Placement,
        prompt: Prompt,
        conditioning: ChunkConditioning,
    ) -> None:
        """Give every block what one chunk's passes have in common."""
        transformer = config.transformer
        rows, columns = config.latent_height // PATCH, config.latent_width // PATCH
        cos, sin = rotary_table(
            placement.first_frame,
            config.chunk_latent_frames,
            rows,
            columns,
            transformer.head_dim,
            transformer.rope_theta,
            self.device,
        )
        index = cache.token_index(placement)
        conditioning.bind(self.blocks)
        for layer, block in enumerate(self.blocks):
            keys, values = cache.visible(layer, placement)
            self.compilation.expect_any_length(keys, values)
            block.bind(rotary_cos=cos, rotary_sin=sin, kv_keys=keys, kv_values=values, kv_index=index)
            block.bind(text_keys=prompt.keys[layer], text_values=prompt.values[layer])

    def _sample(
        self,
        session: Session,
        sigmas: tuple[float, ...],
        noise: Noise,
        conditioning: ChunkConditioning,
        before_step: Callable[[], None],
    ) -> Tensor:
        config = session.config
        shape = (
            1,
            config.transformer.latent_channels,
            config.chunk_latent_frames,
            config.latent_height,
            config.latent_width,
        )

        def draw_noise() -> Tensor:
            return to_device(noise.draw(shape), self.device)

        passes = itertools.count()

        def count_pass() -> None:
            # Pass by pass, so that a chunk that is given up counts for what it took.
            before_step()
            self._count_pass(next(passes), len(sigmas), conditioning)

        condition = session.condition_of_next_chunk()
        cache = self.step_cache
        forwards = None if cache is None else (cache.step, cache.context_pass)
        return sample_chunk(
            self.transformer,
            self.blocks,
            condition,
            sigmas,
            draw_noise,
            count_pass,
            forwards=forwards,
            has_fresh_noise=has_fresh_noise(config, len(sigmas)),
        )

    def block_runs(self) -> tuple[int, int]:
        """How many blocks have been computed, and how many the step cache has skipped."""
        counters, num_layers = self.counters, len(self.blocks)
        if self.step_cache is None:
            return (counters.denoising_steps + counters.context_passes) * num_layers, 0
        computed = self.step_cache.computed_blocks + counters.context_passes * num_layers
        return computed, self.step_cache.skipped_blocks

    def forget_counts(self) -> None:
        """Begin to count anew, without pictures and prompts seen: what warming up did is nobody's request."""
        self.counters.forget()
        self.pictures.forget()
        self.prompts.forget()
        if self.step_cache is not None:
            self.step_cache.computed_blocks = self.step_cache.skipped_blocks = 0

    def _count_pass(self, number: int, num_steps: int, conditioning: ChunkConditioning) -> None:
        self.counters.denoising_steps += number < num_steps
        self.counters.context_passes += number == num_steps
        self.counters.conditioner_misses += conditioning.misses_in_pass(number)
        self.counters.conditioner_hits += conditioning.hits_in_pass(number)

    def unbind_chunk(self) -> None:
        """Let go of it, and of the chunk's scale and shift; also where nothing was bound."""
        self.counters.conditioner_bytes = 0
        for block in self.blocks:
            block.unbind()
        if self.step_cache is not None:
            self.step_cache.end_chunk()


def hashed_words(config: WorldConfig) -> HashedWords:
    """The text encoder of worlds that have no other."""
    return HashedWords(config.transformer.text_len, config.transformer.text_dim, vocabulary=config.vocabulary)
