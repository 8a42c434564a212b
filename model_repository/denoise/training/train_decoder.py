"""Give the codec's decoder more blocks and train it on, once its encoder is final. Goes on where a broken run stopped.

    python model_repository/denoise/training/train_decoder.py --steps 3000

Needs the run of train_codec.py. The latents stay what they are: once this has begun, train_world.py may run beside it.
Everything lands in <cache>/runs/<name>, as train_codec.py writes it.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from commands import RefusedError, require_walks, run_command, run_name
from courtyard.dataset import ClipStore, DatasetSpec, cache_folder
from torch import Tensor, nn
from torch.nn import functional
from train_codec import CodecTrainer, add_options, reconstruction_loss
from workbench import Budget
from worldmodel.checkpoint import read_tensors
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.codec import StreamingCodec
from worldmodel.config import EMBEDDED, WorldConfig

SQUARED = 12.0  # weight of the squared error, which is what PSNR counts, beside the rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the budget is spent."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    cache = options.cache or cache_folder()
    train, held_out = DatasetSpec("train", 0), DatasetSpec("held_out", seed=0)
    require_walks(*(ClipStore(cache, spec) for spec in (train, held_out)))
    DecoderTrainer(options, cache, train, held_out).train(Budget(options.minutes, options.steps))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, from the command line if no arguments are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, 4e-4, name="decoder")
    parser.add_argument("--codec", type=run_name, default="codec", help="the run of train_codec.py")
    return parser.parse_args(arguments)


class DecoderTrainer(CodecTrainer):
    """A codec whose encoder is done, in a run of its own."""

    def __init__(
        self,
        options: argparse.Namespace,
        cache: Path,
        train: DatasetSpec,
        held_out: DatasetSpec,
        config: WorldConfig = EMBEDDED,
    ) -> None:
        super().__init__(options, cache, train, held_out, config)
        self.codec.encoder.requires_grad_(False)
        file = cache / "runs" / options.codec / "codec.safetensors"
        try:
            if not self.run.step:
                grow(self.codec, read_tensors(file))
            elif file.exists():
                check_encoder(self.codec, read_tensors(file))
        except (CheckpointError, ValueError) as error:
            raise RefusedError(f"--codec: run {options.codec} for run {options.name}: {error}") from error
        if not self.run.step:
            self.average.values = {name: value.clone() for name, value in self.codec.state_dict().items()}
            self.check()  # the world may be trained from here on: its latents are final

    def learnt(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return list(self.codec.decoder.parameters())

    def loss(self, decoded: Tensor, frames: Tensor, latents: Tensor) -> Tensor:
        """What is made small: pixels' errors, above all the squared ones."""
        return reconstruction_loss(decoded, frames) + SQUARED * functional.mse_loss(decoded, frames)

    def set_statistics(self, codec: StreamingCodec, cells: Tensor) -> None:
        """Leave them: the latents are those of the codec's run."""


def grow(codec: StreamingCodec, tensors: dict[str, Tensor]) -> None:
    """Load a codec that may have fewer decoder blocks; those it lacks stay pass-throughs, as `new_codec` made them.

    Raises:
        ValueError: something other than decoder blocks is missing, has no place, or is of another shape.
    """
    own = codec.state_dict()
    wrong = [name for name in own.keys() - tensors.keys() if not name.startswith("decoder.stages.")]
    wrong += [name for name, value in tensors.items() if name not in own or own[name].shape != value.shape]
    if wrong:
        raise ValueError(f"the codec's weights do not fit: {', '.join(sorted(wrong)[:5])}")
    codec.load_state_dict(tensors, strict=False)


def check_encoder(codec: StreamingCodec, tensors: dict[str, Tensor]) -> None:
    """Hold a codec's encoder, from which worlds have learnt perhaps, against that of the run that it began with.

    Raises:
        ValueError: they differ.
    """
    own = codec.state_dict()
    encoder = {name: value for name, value in tensors.items() if not name.startswith("decoder.")}
    if any(name not in own or not torch.equal(own[name].cpu(), value) for name, value in encoder.items()):
        raise ValueError(
            "its encoder has been trained on since this run began; put this run's folder away to begin it anew, and "
            "those of worlds that learnt from it"
        )


if __name__ == "__main__":
    os.nice(5)  # training is never in a hurry
    run_command(main)
