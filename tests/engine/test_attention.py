"""The attention function against a reference of a few lines: on the CPU, and as CUDA calls it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine.attention import (
    CUDA_BLOCK_SIZE,
    AttentionCall,
    CpuRows,
    CudaRows,
    ShapeObserver,
    attend,
)
from paceline.engine.paged_cache import LayerShape, PagedCache
from paceline.engine.step import Span, Step
from paceline.errors import FailedPrecondition

HEADS, KV_HEADS, DIM, VALUE_DIM, SIZE = 4, 2, 8, 6, 4
# (tokens before, rows of the step): decode, a proposal, a chunk, a first chunk, a long prompt.
SHAPES = ((13, 1), (9, 5), (21, 18), (0, 6), (0, 40))


class Packed:
    """Random keys and values of several sequences, the last rows of which make up a step."""

    def __init__(self, *, contiguous: bool) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(heads: int, length: int, dim: int) -> torch.Tensor:
            return torch.randn(heads, length, dim, generator=generator)

        lengths = [before + rows for before, rows in SHAPES]
        self.queries = [draw(HEADS, rows, DIM) for _, rows in SHAPES]
        self.keys = [draw(KV_HEADS, length, DIM) for length in lengths]
        self.values = [draw(KV_HEADS, length, VALUE_DIM) for length in lengths]
        counts = [-(-length // SIZE) for length in lengths]
        blocks = list(range(sum(counts)))
        if not contiguous:
            blocks = torch.randperm(len(blocks), generator=generator).tolist()
        tables = [tuple(blocks[sum(counts[:i]) : sum(counts[: i + 1])]) for i in range(len(counts))]
        spans = [
            Span((0,) * rows, before, table, rows, 1)
            for (before, rows), table in zip(SHAPES, tables, strict=True)
        ]
        self.step = Step(tuple(spans), SIZE)
        self.cache = PagedCache(
            (LayerShape(KV_HEADS, DIM, VALUE_DIM),),
            len(blocks),
            SIZE,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        for span, key, value in zip(spans, self.keys, self.values, strict=True):
            slots = [span.block_table[p // SIZE] * SIZE + p % SIZE for p in range(span.start)]
            self.cache.write(
                0,
                torch.tensor(slots, dtype=torch.int64),
                key[:, : span.start],
                value[:, : span.start],
            )

    def call(self, window: int | None) -> AttentionCall:
        """The rows of the step, packed."""
        starts = [before for before, _ in SHAPES]
        return AttentionCall(
            layer=0,
            query=torch.cat(self.queries, dim=1),
            key=torch.cat([k[:, s:] for k, s in zip(self.keys, starts, strict=True)], dim=1),
            value=torch.cat([v[:, s:] for v, s in zip(self.values, starts, strict=True)], dim=1),
            scale=0.3,
            window=window,
        )

    def expected(self, window: int | None) -> torch.Tensor:
        """Row by row: softmax over the positions that the row may see, [T, Hq, Dv]."""
        rows = []
        for (before, count), query, key, value in zip(
            SHAPES, self.queries, self.keys, self.values, strict=True
        ):
            for row in range(count):
                last = before + row + 1
                first = 0 if window is None else max(0, last - window)
                heads = []
                for head in range(HEADS):
                    kv = head // (HEADS // KV_HEADS)
                    scores = 0.3 * key[kv, first:last] @ query[head, row]
                    heads.append(scores.softmax(0) @ value[kv, first:last])
                rows.append(torch.stack(heads))
        return torch.stack(rows)


def paged_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int | None,
) -> torch.Tensor:
    """What `varlen_attn` is documented to do with a paged cache, written out.

    Rows of a sequence are its last ones: row `i` of `n` stands at position `used - n + i`, and
    sees `left` positions before itself and `right` behind.
    """
    assert 1 == num_splits and query.is_contiguous()
    assert cu_seq_k is not None, "the kernel takes starts of both or of none"
    kinds = {cu_seq_q.dtype, cu_seq_k.dtype, seqused_k.dtype, block_table.dtype}
    assert {torch.int32} == kinds and cu_seq_k.shape == cu_seq_q.shape
    assert enable_gqa == (query.shape[1] != key.shape[2])
    starts = cu_seq_q.tolist()
    groups = query.shape[1] // key.shape[2]
    left, right = window_size
    assert 0 == right and max_k == int(seqused_k.max())
    output = torch.empty(*query.shape[:2], value.shape[-1])
    for index, used in enumerate(seqused_k.tolist()):
        rows = query[starts[index] : starts[index + 1]]
        assert len(rows) <= max_q
        keys = key[block_table[index].long()].flatten(0, 1)[:used]
        values = value[block_table[index].long()].flatten(0, 1)[:used]
        for row in range(len(rows)):
            position = used - len(rows) + row
            first = 0 if left < 0 else max(0, position - left)
            seen = slice(first, position + 1)
            for head in range(query.shape[1]):
                scores = scale * keys[seen, head // groups] @ rows[row, head]
                output[starts[index] + row, head] = scores.softmax(0) @ values[seen, head // groups]
    return output


@pytest.mark.parametrize("window", [None, 1, 3, 7, 200])
@pytest.mark.parametrize("contiguous", [True, False], ids=["views", "fragments"])
def test_cpu_rows_equal_the_reference(window: int | None, contiguous: bool) -> None:
    """B51, B70: ragged rows of every kind in one step, windows below the number of rows too."""
    packed = Packed(contiguous=contiguous)
    rows = CpuRows(packed.step, packed.cache)
    torch.testing.assert_close(
        packed.expected(window), rows.attend(packed.call(window)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("window", [None, 1, 3, 7, 200])
@pytest.mark.parametrize("contiguous", [True, False], ids=["views", "fragments"])
def test_cuda_rows_ask_the_kernel_for_the_same(
    monkeypatch: pytest.MonkeyPatch, window: int | None, contiguous: bool
) -> None:
    """B51: what is handed to the paged kernel means what the CPU computes."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", paged_reference)
    packed = Packed(contiguous=contiguous)
    packed.cache.keys = [key.contiguous() for key in packed.cache.keys]  # slot-major, as on CUDA
    packed.cache.values = [value.contiguous() for value in packed.cache.values]
    rows = CudaRows(packed.step, packed.cache, torch.device("cpu"))
    torch.testing.assert_close(
        packed.expected(window), rows.attend(packed.call(window)), atol=1e-5, rtol=0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 7])
def test_cuda_kernel_equals_the_reference(window: int | None) -> None:
    """The kernel itself, in bfloat16, on fragmented blocks."""
    device, dtype, dim = torch.device("cuda"), torch.bfloat16, 64
    torch.manual_seed(0)
    size = CUDA_BLOCK_SIZE
    cache = PagedCache((LayerShape(2, dim, dim),), 8, size, dtype=dtype, device=device)
    spans = (Span((0,) * 600, 0, (5, 1, 7), 1, 1), Span((0,) * 9, 0, (2,), 1, 1))
    step = Step(spans, size)
    query, key, value = (
        torch.randn(heads, step.num_rows, dim, dtype=dtype, device=device) for heads in (4, 2, 2)
    )
    call = AttentionCall(0, query, key, value, 0.125, window)
    got = CudaRows(step, cache, device).attend(call).float().cpu()
    exact = PagedCache(
        (LayerShape(2, dim, dim),), 8, size, dtype=torch.float32, device=torch.device("cpu")
    )
    same = AttentionCall(
        0, query.float().cpu(), key.float().cpu(), value.float().cpu(), 0.125, window
    )
    torch.testing.assert_close(CpuRows(step, exact).attend(same), got, atol=2e-2, rtol=0)


def test_a_row_keeps_its_result_in_other_company() -> None:
    """B17: on the CPU attention of a sequence is the same bit for bit, alone or packed."""
    packed = Packed(contiguous=True)
    together = CpuRows(packed.step, packed.cache).attend(packed.call(None))
    alone_step = Step((packed.step.spans[1],), SIZE)
    call = packed.call(None)
    rows = slice(1, 6)
    alone = CpuRows(alone_step, packed.cache).attend(
        AttentionCall(
            0, call.query[:, rows], call.key[:, rows], call.value[:, rows], call.scale, None
        )
    )
    assert torch.equal(together[rows], alone)


def test_observer_notes_shapes() -> None:
    """The shape of every layer is seen as it is called, key and value dims apart."""
    observer = ShapeObserver()
    call = Packed(contiguous=True).call(None)
    output = observer.attend(call)
    assert {0: LayerShape(KV_HEADS, DIM, VALUE_DIM)} == observer.shapes
    assert (call.query.shape[1], HEADS, VALUE_DIM) == output.shape


class FakeAttention(torch.nn.Module):
    """A layer as transformers hands it to an attention function."""

    layer_idx = 3


@pytest.fixture
def call_attend() -> Callable[..., tuple[torch.Tensor, None]]:
    """Calls `attend` as a layer of a model would, with keywords of its own."""

    def call(**keywords: object) -> tuple[torch.Tensor, None]:
        query, key = torch.ones(1, HEADS, 5, DIM), torch.ones(1, KV_HEADS, 5, DIM)
        keywords = {"attention_mask": None, "rows": ShapeObserver(), **keywords}
        return attend(FakeAttention(), query, key, key, **keywords)  # type: ignore[arg-type]  # wrong on purpose in some tests

    return call


def test_attend_gives_what_models_expect(
    call_attend: Callable[..., tuple[torch.Tensor, None]],
) -> None:
    """The output is [1, T, Hq, D], without weights; inert keywords pass."""
    output, weights = call_attend(dropout=0.0, is_causal=True, position_ids=torch.zeros(1, 5))
    assert (1, 5, HEADS, DIM) == output.shape
    assert weights is None


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"anything_new": 1}, "anything_new"),
        ({"attention_mask": torch.zeros(1, 1, 5, 5)}, "attention_mask"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
    ],
)
def test_what_would_be_ignored_is_refused(
    call_attend: Callable[..., tuple[torch.Tensor, None]], keywords: dict[str, object], named: str
) -> None:
    """A keyword that would change the logits is named, together with the layer that asks."""
    with pytest.raises(FailedPrecondition, match=f"FakeAttention asks attention for {named}"):
        call_attend(**keywords)


def test_unset_keywords_are_no_matter(
    call_attend: Callable[..., tuple[torch.Tensor, None]],
) -> None:
    """A keyword that is passed as None asks for nothing."""
    call_attend(softcap=None, s_aux=None)


def test_rows_must_arrive(call_attend: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """A model that does not hand keywords on would attend across sequences: it is refused."""
    with pytest.raises(FailedPrecondition, match="FakeAttention does not hand keywords on"):
        call_attend(rows=None)
