"""A large checkpoint is never held twice: the peak of a process that loads one, beside one that reads it whole."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

VERSION_FOLDER = Path(__file__).parents[2] / "model_repository" / "denoise" / "1"
LAYERS, WIDTH = 24, 2048  # 24 matrices of 8 MiB in bfloat16

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from torch import nn
from worldmodel import checkpoint

def peak_kib():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)

with torch.device("meta"):
    module = nn.Sequential(*(nn.Linear({width}, {width}, bias=False) for _ in range({layers})))
torch.zeros(1000).bfloat16().float()
before = peak_kib()
if sys.argv[2] == "lean":
    checkpoint.MAPPED_BYTES = 32 << 20
    checkpoint.load_strict(module, Path(sys.argv[1]), dtype_of=lambda _: getattr(torch, sys.argv[3]))
else:
    dtype, tensors = getattr(torch, sys.argv[3]), load_file(sys.argv[1])
    module.load_state_dict({{key: value.to(dtype, copy=True) for key, value in tensors.items()}}, assign=True)
weights = sum(value.nbytes for value in module.parameters())
print(json.dumps([1024 * (peak_kib() - before), weights]))
"""


def peak_share(file, how, dtype):
    """How much a load takes at its peak, in sizes of what it leaves."""
    program = PROGRAM.format(width=WIDTH, layers=LAYERS)
    command = [sys.executable, "-c", program, str(file), how, dtype]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(VERSION_FOLDER)})
    peak, weights = json.loads(told.stdout)
    return peak / weights


def test_the_host_holds_the_weights_once(tmp_path):
    file = tmp_path / "model.safetensors"
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)))
    save_file(dict(layers.state_dict()), file)
    assert peak_share(file, "lean", "bfloat16") < 1.25
    assert peak_share(file, "lean", "float32") < 1.25
    assert peak_share(file, "whole", "bfloat16") > 1.9
