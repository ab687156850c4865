"""The one attention function: every sequence of a step attends to its own slots of the cache.

It is registered with transformers under a name and receives, from any model that supports the
attention interface, the projected and rotated queries, keys and values of all rows of a step,
packed as one batch entry. What the rows mean comes along as the `rows` keyword of the model call.
It knows no scheduler and no session; models that would call it wrongly are the self-test's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from paceline.engine.paged_cache import LayerShape, PagedCache, slot_runs
from paceline.engine.step import Step
from paceline.errors import FailedPrecondition

ATTENTION_NAME = "paceline"
CUDA_BLOCK_SIZE = 256
"""Slots of a block on CUDA, or a multiple: the paged kernel takes no other."""

# Up to this many rows a sequence's query heads that share a key head are stacked as rows of one
# product; beyond it the mask would outgrow the gain. Measured: 27 against 38 us at 300 keys.
_MAX_GROUPED_ROWS = 16

# Keywords that models pass and that carry nothing this function must act on: positions are
# already in the rotated queries, causality and packing are in `rows`, dropout is off in eval mode.
_INERT_KEYWORDS = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "dropout",
        "is_causal",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's call: query [Hq, T, D], key [Hkv, T, D], value [Hkv, T, Dv] of all rows."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    window: int | None
    """Number of positions a row sees, itself included; None sees all before it."""


class Rows(Protocol):
    """What the rows of a model call mean to attention."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attends: gives [T, Hq, Dv]."""


def register() -> None:
    """Makes `attend` available to models under `ATTENTION_NAME`; may be called again."""
    AttentionInterface.register(ATTENTION_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    rows: Rows | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls: query [1, Hq, T, D], key and value [1, Hkv, T, D].

    Returns:
        Attention output [1, T, Hq, Dv], and no weights.

    Raises:
        FailedPrecondition: the model passes something that would be ignored here and would
            change its logits (a soft cap, attention sinks), or does not pass `rows` on.
    """
    name = type(module).__name__
    if rows is None:
        raise FailedPrecondition(f"{name} does not hand keywords on to attention")
    unknown = [k for k, v in keywords.items() if v is not None and k not in _INERT_KEYWORDS]
    if unknown or attention_mask is not None:
        what = ", ".join(sorted(unknown)) or "attention_mask"
        raise FailedPrecondition(f"{name} asks attention for {what}, which is not supported")
    call = AttentionCall(
        layer=int(module.layer_idx),  # type: ignore[arg-type]  # an int by the interface
        query=query[0],
        key=key[0],
        value=value[0],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
    )
    return rows.attend(call)[None], None


class ShapeObserver:
    """Rows that note what each layer would store, each row attending to itself alone."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.num_calls = 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Notes the shape; the output is each row's own value."""
        self.num_calls += 1
        num_kv_heads = call.key.shape[0]
        self.shapes[call.layer] = LayerShape(num_kv_heads, call.key.shape[-1], call.value.shape[-1])
        groups = call.query.shape[0] // num_kv_heads
        return call.value.repeat_interleave(groups, dim=0).transpose(0, 1)


class CpuRows:
    """The rows of one step on the CPU: one product per sequence, keys and values read as views."""

    def __init__(self, step: Step, cache: PagedCache) -> None:
        self._cache = cache
        self._spans = step.spans
        self._slots = find_slots(step, torch.device("cpu"))
        self._runs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._masks: dict[tuple[int, int | None, int], torch.Tensor | None] = {}
        self._block_size = step.block_size

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Stores the rows' keys and values, then attends sequence by sequence."""
        self._cache.write(call.layer, self._slots, call.key, call.value)
        outputs, row = [], 0
        for index, span in enumerate(self._spans):
            num_rows = len(span.token_ids)
            outputs.append(self._attend_one(index, call, call.query[:, row : row + num_rows]))
            row += num_rows
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_one(self, index: int, call: AttentionCall, query: torch.Tensor) -> torch.Tensor:
        """One sequence: query [Hq, T, D]; gives [T, Hq, Dv]."""
        span = self._spans[index]
        num_heads, num_rows, dim = query.shape
        first = 0 if call.window is None else max(0, span.start + 1 - call.window)
        key, value = self._cache.read(call.layer, self._run(index, first))
        num_kv_heads, num_keys, value_dim = value.shape
        groups = num_heads // num_kv_heads
        if num_rows <= _MAX_GROUPED_ROWS:
            output = F.scaled_dot_product_attention(
                query.reshape(1, num_kv_heads, groups * num_rows, dim),
                key[None],
                value[None],
                attn_mask=self._mask(index, call.window, groups, query.dtype),
                scale=call.scale,
            )
            return output.view(num_heads, num_rows, value_dim).transpose(0, 1)
        is_plain_causal = first == 0 and num_keys == num_rows and call.window is None
        output = F.scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            attn_mask=None if is_plain_causal else self._mask(index, call.window, 1, query.dtype),
            is_causal=is_plain_causal,
            scale=call.scale,
            enable_gqa=groups > 1,
        )
        return output[0].transpose(0, 1)

    def _run(self, index: int, first: int) -> list[tuple[int, int]]:
        """The slots that hold positions `first` .. end of a sequence."""
        runs = self._runs.get((index, first))
        if runs is None:
            span = self._spans[index]
            runs = slot_runs(span.block_table, self._block_size, first, span.end)
            self._runs[index, first] = runs
        return runs

    def _mask(
        self, index: int, window: int | None, groups: int, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Additive mask [groups * T, N] of a sequence, or None where a row sees every key read.

        The same for all layers of a step that share a window, so it is made once.
        """
        if (index, window, groups) in self._masks:
            return self._masks[index, window, groups]
        span = self._spans[index]
        num_rows = len(span.token_ids)
        mask = None
        if num_rows > 1:
            first = 0 if window is None else max(0, span.start + 1 - window)
            keys = torch.arange(first, span.end)
            rows = torch.arange(span.start, span.end)[:, None]
            mask = causal_mask(keys, rows, window, dtype).repeat(groups, 1)
        self._masks[index, window, groups] = mask
        return mask


def causal_mask(
    keys: torch.Tensor, rows: torch.Tensor, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask [rows, N] for positions of keys [N] and of rows [rows, 1].

    A row sees itself and what is before it, with a window only the last `window` positions of that.
    """
    hidden = keys > rows
    if window is not None:
        hidden |= keys <= rows - window
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, float("-inf"))


class CudaRows:
    """The rows of one step on CUDA: one ragged paged kernel call per layer.

    `num_splits=1` keeps a row's result independent of the other sequences of the step.
    """

    def __init__(self, step: Step, cache: PagedCache, device: torch.device) -> None:
        self._cache = cache
        self._slots = find_slots(step, device)

        def upload(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)

        counts = [len(span.token_ids) for span in step.spans]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        width = max(len(span.block_table) for span in step.spans)
        tables = [
            [*span.block_table, *[0] * (width - len(span.block_table))] for span in step.spans
        ]
        self._row_starts = upload(starts)
        self._lengths = upload([span.end for span in step.spans])
        self._block_tables = torch.tensor(tables, dtype=torch.int32).to(device, non_blocking=True)
        self._max_rows = max(counts)
        self._max_length = max(span.end for span in step.spans)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Stores the rows' keys and values, then attends to the cache in one call."""
        from torch.nn.attention.varlen import varlen_attn  # CUDA only: kept off the CPU's path

        self._cache.write(call.layer, self._slots, call.key, call.value)
        key, value = self._cache.blocks(call.layer)
        output = varlen_attn(
            call.query.transpose(0, 1).contiguous(),
            key,
            value,
            self._row_starts,
            self._row_starts,  # The kernel demands starts of keys, too, and reads tables instead.
            self._max_rows,
            self._max_length,
            scale=call.scale,
            window_size=(-1 if call.window is None else call.window - 1, 0),
            enable_gqa=call.query.shape[0] != call.key.shape[0],
            seqused_k=self._lengths,
            block_table=self._block_tables,
            num_splits=1,
        )
        assert isinstance(output, torch.Tensor)
        return output


def find_slots(step: Step, device: torch.device) -> torch.Tensor:
    """The slot of every row of a step, int64 [T]."""
    return torch.tensor(list_slots(step), dtype=torch.int64).to(device, non_blocking=True)


def list_slots(step: Step) -> list[int]:
    """The slot of every row of a step."""
    slots: list[int] = []
    for span in step.spans:
        for first, last in slot_runs(span.block_table, step.block_size, span.start, span.end):
            slots.extend(range(first, last))
    return slots
