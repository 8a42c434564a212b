"""Whether blocks are compiled, how many graphs that took, and how often they ran. Knows the compiler, and no model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Variants of one block's graph that Dynamo keeps; beyond, it would go on without compiled code and say so only in its
# log. A served size may take a few, its usual limit is eight.
MOST_GRAPHS = 128

CompiledGraph = Callable[..., Any]


class Compilation:
    """Whether blocks are compiled, how many graphs have been made for them, and how often one has run."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.calls = 0  # of compiled graphs, since READY
        self._graphs_at_ready = self.num_graphs()

    def backend(self, name: str, mode: str = "default") -> Callable[[Any, Sequence[Any]], CompiledGraph]:
        """A compiler for `torch.compile` that counts the calls of what it makes: blocks that ran compiled, truly.

        Args:
            name: one of torch's own backends.
            mode: of torch.compile; only "inductor" has any but "default".
        """
        import torch._dynamo  # the compiler: only where it is used, since it takes seconds to import
        import torch._inductor

        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_GRAPHS)
        compiler: Any = torch._dynamo.lookup_backend(name)
        options = {} if mode == "default" else {"config_patches": torch._inductor.list_mode_options(mode)}

        def compile_and_count(graph: Any, inputs: Sequence[Any]) -> CompiledGraph:
            compiled = compiler(graph, inputs, **options)

            def run(*arguments: Any) -> Any:
                self.calls += 1
                return compiled(*arguments)

            return run

        return compile_and_count

    def expect_any_length(self, *visible: Tensor) -> None:
        """Say of keys and values [1, H, visible tokens, D] that their length will change: one graph serves all."""
        if self.is_on:
            for tensor in visible:
                torch._dynamo.maybe_mark_dynamic(tensor, 2)

    def mark_ready(self) -> None:
        """From now on every new graph is a recompile that a client waits for."""
        self._graphs_at_ready = self.num_graphs()
        self.calls = 0

    def recompiles(self) -> int:
        """Graphs made since the model was ready."""
        return self.num_graphs() - self._graphs_at_ready

    @staticmethod
    def num_graphs() -> int:
        """Graphs that the compiler has made in this process."""
        # Not imported for the count's sake: without the compiler there is no graph.
        utils = sys.modules.get("torch._dynamo.utils")
        return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
