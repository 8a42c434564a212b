#!/usr/bin/env python3
"""How fast pictures come in: see `ingest_costs`, whose name is not that of the package that it measures."""

import sys

from ingest_costs import WANTED, main

__all__ = ["WANTED"]

if __name__ == "__main__":
    sys.exit(main())
