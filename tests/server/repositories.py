"""Model repositories for tests that want less than the whole one."""

import shutil
from pathlib import Path

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def preprocess_alone(folder: Path) -> Path:
    """A copy of `preprocess` without the world, for a server whose processes are those that see pictures."""
    ignored = shutil.ignore_patterns("__pycache__", ".mypy_cache")
    shutil.copytree(REPOSITORY / "preprocess", folder / "models" / "preprocess", ignore=ignored)
    return folder / "models"
