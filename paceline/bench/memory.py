"""What a model takes on its tier, by its files; told only where engine and files are here.

It loads no weights. It knows no service.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from paceline.errors import PacelineError
from paceline.serving.config import CACHE_DIR

_BLOCK_SIZE, _MAX_ROWS = 16, 512


def describe_memory(name: str, memory_mib: int, max_length: int) -> dict[str, Any]:
    """Weights, cache of one token, and the blocks that fit into a budget; or why that is unknown.

    Args:
        name: The model's name, as its service was started with.
        memory_mib: Budget of one replica.
        max_length: Longest sequence in tokens.
    """
    if importlib.util.find_spec("torch") is None:
        return {"model": name, "unknown": "the engine is not installed here"}
    from paceline.engine import models
    from paceline.engine.memory_plan import plan_memory

    options = models.LoadOptions(CACHE_DIR.expanduser())
    try:
        size = models.measure(name, options, lambda _: None)
        plan = plan_memory(
            size,
            total_bytes=memory_mib << 20,
            block_size=_BLOCK_SIZE,
            max_rows=_MAX_ROWS,
            max_length=max_length,
        )
    except PacelineError as error:
        return {"model": name, "unknown": error.message}
    return {
        "model": name,
        "weights_mib": size.weights_bytes / (1 << 20),
        "kv_bytes_per_token": size.kv_bytes_per_token,
        "blocks": plan.num_blocks,
        "block_size": _BLOCK_SIZE,
        "sequences": plan.num_tokens / max_length,
    }
