"""How a memory budget divides into weights, workspace and cache blocks.

Arithmetic alone, so that it is done and printed before anything is loaded. Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import Exhausted, InvalidArgument

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model takes."""

    weights_bytes: int
    kv_bytes_per_token: int
    """Keys and values of one token in all layers."""
    workspace_bytes_per_row: int
    """Activations of one row of a step at their peak, its logits included."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A budget, divided."""

    total_bytes: int
    weights_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    block_size: int
    """Tokens per block."""
    num_blocks: int
    max_length: int
    """Longest sequence in tokens."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self.block_size * self.kv_bytes_per_token

    @property
    def num_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.num_blocks * self.block_size

    def describe(self) -> str:
        """The plan in a few lines for people."""
        return "\n".join(
            (
                f"memory plan: {_mib(self.total_bytes)} in all",
                f"  weights    {_mib(self.weights_bytes)}",
                f"  workspace  {_mib(self.workspace_bytes)}",
                f"  cache      {_mib(self.num_blocks * self.block_bytes)}"
                f" = {self.num_blocks} blocks of {self.block_size} tokens",
                f"  room for {self.num_tokens} tokens,"
                f" {self.num_tokens / self.max_length:.1f} sequences of {self.max_length}",
            )
        )


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of one token's keys and values in all layers; `itemsize` is of one number."""
    return 2 * num_layers * num_kv_heads * head_dim * itemsize


def plan_memory(
    size: ModelSize, *, total_bytes: int, block_size: int, max_rows: int, max_length: int
) -> MemoryPlan:
    """Gives weights and workspace their part and the cache the rest.

    Args:
        size: What the model takes.
        total_bytes: The budget.
        block_size: Tokens per block.
        max_rows: Row budget of a step.
        max_length: Longest sequence in tokens.

    Raises:
        InvalidArgument: A number is not positive.
        Exhausted: Not even one sequence of `max_length` fits.
    """
    numbers = {
        "total_bytes": total_bytes,
        "block_size": block_size,
        "max_rows": max_rows,
        "max_length": max_length,
    }
    for field, value in numbers.items():
        if value <= 0:
            raise InvalidArgument(field, "must be positive")
    workspace_bytes = max_rows * size.workspace_bytes_per_row
    block_bytes = block_size * size.kv_bytes_per_token
    cache_bytes = total_bytes - size.weights_bytes - workspace_bytes
    needed_blocks = -(-max_length // block_size)
    if cache_bytes < needed_blocks * block_bytes:
        needed_bytes = total_bytes - cache_bytes + needed_blocks * block_bytes
        raise Exhausted(
            f"a memory budget of {_mib(total_bytes)} is too small: weights"
            f" {_mib(size.weights_bytes)}, workspace {_mib(workspace_bytes)} and one sequence of"
            f" {max_length} tokens {_mib(needed_blocks * block_bytes)} take"
            f" {_mib(needed_bytes)}; raise the budget or lower max_length",
            reason="MEMORY_BUDGET_TOO_SMALL",
            metadata={"needed_bytes": str(needed_bytes), "budget_bytes": str(total_bytes)},
        )
    return MemoryPlan(
        total_bytes=total_bytes,
        weights_bytes=size.weights_bytes,
        workspace_bytes=workspace_bytes,
        kv_bytes_per_token=size.kv_bytes_per_token,
        block_size=block_size,
        num_blocks=cache_bytes // block_bytes,
        max_length=max_length,
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.1f} MiB"
