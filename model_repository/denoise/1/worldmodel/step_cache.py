"""Skipping the middle blocks of denoising steps that change little: cache-dit, mounted on the transformer.

The library's context belongs to the transformer, not to a session, and it counts calls. So it is begun anew at every
chunk, no other chunk comes between a chunk's steps, and the context pass goes around it: a block that is skipped writes
no keys and values, which only a denoising step can bear, since the context pass writes them over.

Imported only where the configuration asks for it: the library brings diffusers and transformers with it.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from worldmodel.sampler import Forward
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.transformer import CausalWorldTransformer


class StepCache:
    """The mounted library, and what it has skipped."""

    def __init__(self, transformer: CausalWorldTransformer) -> None:
        """Mount; before anything is compiled, so that warm-up sees the path that requests take."""
        # The library logs each chunk's settings, and to stdout; what matters of them is counted here. It looks at the
        # variable while it is imported, and sets its logger's level by it.
        os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")
        import cache_dit

        self._library: Any = cache_dit
        self._transformer: Any = transformer
        self._num_layers = len(transformer.blocks)
        self._forward: Forward = transformer.forward
        self._num_cached = 0
        self._settings: StepCacheSettings | None = None
        self.computed_blocks = 0
        self.skipped_blocks = 0
        adapter = cache_dit.BlockAdapter(
            transformer=transformer,
            blocks=transformer.blocks,
            forward_pattern=cache_dit.ForwardPattern.Pattern_3,
            has_separate_cfg=False,
        )
        cache_dit.enable_cache(adapter, cache_config=cache_dit.DBCacheConfig(num_inference_steps=1))

    def begin_chunk(self, settings: StepCacheSettings, num_steps: int) -> None:
        """Forget everything of the chunk before."""
        self._settings = settings if settings.is_on(num_steps) else None
        self._num_cached = 0
        if self._settings is not None:
            calibrator = None
            if settings.taylorseer_order:
                calibrator = self._library.TaylorSeerCalibratorConfig(taylorseer_order=settings.taylorseer_order)
            mask = settings.mask()
            config = self._library.DBCacheConfig(
                Fn_compute_blocks=settings.first_blocks,
                Bn_compute_blocks=settings.last_blocks,
                residual_diff_threshold=settings.threshold,
                max_warmup_steps=0 if mask else settings.warmup_steps,
                max_continuous_cached_steps=-1 if mask else settings.max_continuous,
                num_inference_steps=num_steps,
                steps_computation_mask=mask,
                steps_computation_policy="static" if mask else "dynamic",
                enable_separate_cfg=False,
            )
            # A new context, not a refresh: a refresh keeps whatever setting the new one leaves out, and all buffers.
            self._context_manager().reset_context(
                self._context_name(), cache_config=config, calibrator_config=calibrator
            )

    def step(self, latent: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """One denoising pass, cached as the chunk's settings say."""
        if self._settings is None:
            self.computed_blocks += self._num_layers
            return self._forward(latent, condition, time)
        velocity: Tensor = self._transformer(latent, condition, time)
        num_cached = len(self._context_manager().get_context(self._context_name()).get_cached_steps())
        kept = self._settings.first_blocks + self._settings.last_blocks
        is_cached, self._num_cached = num_cached > self._num_cached, num_cached
        self.computed_blocks += kept if is_cached else self._num_layers
        self.skipped_blocks += self._num_layers - kept if is_cached else 0
        return velocity

    def context_pass(self, latent: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """The pass that writes the clean keys and values: around the cache, always whole."""
        return self._forward(latent, condition, time)

    def end_chunk(self) -> None:
        """Let go of the chunk's buffers."""
        if self._settings is not None:
            self._context_manager().get_context(self._context_name()).clear_buffers()
            self._settings = None

    def _context_manager(self) -> Any:
        return self._transformer._context_manager

    def _context_name(self) -> str:
        name: str = self._transformer._context_names[0]
        return name
