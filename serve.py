#!/usr/bin/env python3
"""Run the real tritonserver: from the nvidia-pytriton wheel on a machine without Docker, or a container's own.

It knows where the server is kept, what it needs around it, who may ask what of it, when it is truly ready (a canary
request has come back through every model), when it is dead and has to be started again (where that is wanted), and
how to leave nothing behind. It knows nothing of what the models compute. Its parts are in docker/launcher/, and import
only the standard library until the server runs, so that they can say what is missing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "docker"))

from launcher.serving import main

if __name__ == "__main__":
    sys.exit(main())
