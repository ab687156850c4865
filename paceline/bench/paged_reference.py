"""What the paged kernel is documented to do, in stock operations, for devices that lack it.

Slow, and it looks at values on the host: for checks, never for serving.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask
from paceline.engine.lean.paged_attention import PagedCall


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
