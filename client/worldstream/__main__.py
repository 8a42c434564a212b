"""The command `worldstream`, for environments whose scripts are not on PATH: `python -m worldstream`."""

from worldstream.cli import app

if __name__ == "__main__":
    app(prog_name="worldstream")
