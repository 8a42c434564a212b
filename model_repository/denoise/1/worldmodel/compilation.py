"""Whether blocks are compiled, and how many graphs that took. Knows the compiler's counters, and no model."""

from __future__ import annotations

import sys


class Compilation:
    """Whether blocks are compiled, and how many graphs have been made for them."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._graphs_at_ready = 0

    def mark_ready(self) -> None:
        """From now on every new graph is a recompile that a client waits for."""
        self._graphs_at_ready = self.num_graphs()

    def recompiles(self) -> int:
        """Graphs made since the model was ready."""
        return self.num_graphs() - self._graphs_at_ready

    @staticmethod
    def num_graphs() -> int:
        """Graphs that the compiler has made in this process."""
        # Not imported for the count's sake: without the compiler there is no graph.
        utils = sys.modules.get("torch._dynamo.utils")
        return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
