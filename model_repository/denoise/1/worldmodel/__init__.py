"""A causal, camera-conditioned video diffusion world. Knows nothing of Triton."""
