"""Stand-ins for the paged kernel where it is missing: for checks and times, never for serving.

One is what the kernel is documented to do, in stock operations: slow, and it looks at values on the
host. The other is torch's kernel before it took tables of blocks.
"""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask
from paceline.engine.lean.paged_attention import PagedCall


def has_paged_kernel() -> bool:
    """Whether this torch has the kernel, which came with 2.13."""
    try:
        from torch.nn.attention.varlen import varlen_attn_out
    except ImportError:
        return False
    return "block_table" in inspect.signature(varlen_attn_out).parameters


def attend_in_one_block(call: PagedCall) -> None:
    """Attends with the kernel of earlier versions: a sequence stands in its first block alone.

    It finds a sequence's keys by their start, as it does where sequences are packed, and how many
    there are by another list; so starts may be in any order, and anything may stand between.
    """
    rows, block_size = call.rows, call.key.shape[1]
    starts = F.pad(rows.tables[:, 0] * block_size, (0, 1))
    output = torch.ops.aten._flash_attention_forward(
        call.query,
        call.key.flatten(0, 1),
        call.value.flatten(0, 1),
        rows.starts,
        starts,
        len(call.query),
        block_size,
        0.0,
        call.window is None,
        False,
        window_size_left=-1 if call.window is None else call.window - 1,
        window_size_right=0,
        seqused_k=rows.lengths,
    )[0]
    call.output.copy_(output)


def attend_plainly(call: PagedCall) -> None:
    """Attends sequence by sequence; see `paged_attention.attend_flash`.

    Rows of a sequence are its last ones: row `i` of `n` stands at position `used - n + i`.
    """
    starts, lengths = call.rows.starts.tolist(), call.rows.lengths.tolist()
    for index, used in enumerate(lengths):
        first, last = starts[index], starts[index + 1]
        if first == last:
            continue
        blocks = call.rows.tables[index].long()
        key, value = (
            part[blocks].flatten(0, 1)[:used].transpose(0, 1)[None]
            for part in (call.key, call.value)
        )
        keys = torch.arange(used, device=key.device)
        positions = torch.arange(used - (last - first), used, device=key.device)[:, None]
        output = F.scaled_dot_product_attention(
            call.query[first:last].transpose(0, 1)[None],
            key,
            value,
            attn_mask=causal_mask(keys, positions, call.window, call.query.dtype),
            enable_gqa=True,
        )
        call.output[first:last] = output[0].transpose(0, 1)
