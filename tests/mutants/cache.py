"""Mistakes in what the cache holds: tokens never run, others' tokens, tokens that are gone."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEQUENCE = "paceline/engine/sequence.py"
_POOL = "paceline/engine/block_pool.py"
_ATTENTION = "paceline/engine/attention.py"
_RUNNER = "paceline/engine/model_runner.py"
_LEAN_RUNNER = "paceline/engine/lean/runner.py"
_LEAN_ATTENTION = "paceline/engine/lean/attention.py"
_SCHEDULER = "paceline/engine/scheduler.py"
_ENGINE = "paceline/engine/engine.py"
_RETURNS = "paceline/engine/returns.py"
_VERIFIER = "verify_service/verifier.py"

_CATCHING_UP = "tests/draft_service/test_model_drafter.py::test_catching_up_after_every_outcome"
_SEQUENCES = ("tests/engine/test_sequence.py",)
_BLOCKS = ("tests/engine/test_block_pool.py", *_SEQUENCES)
_ATTENDED = ("tests/engine/test_attention.py",)
_LEAN_ATTENDED = ("tests/engine/lean/test_attention.py",)
_VERDICTS = ("tests/verify_service/test_session.py::test_verdict",)

_KEPT = "self.num_cached = min(self.num_cached, length)"
_KEY = "digest_size=16, key=parent"

MUTANTS = (
    Mutant(
        "the last token of a block accepted in full never run",
        _SEQUENCE,
        _KEPT,
        "self.num_cached = length",
        (_CATCHING_UP,),
    ),
    Mutant(
        "the cache of replaced tokens kept",
        _SEQUENCE,
        "self._forget_cache(start + num_equal)",
        "self._forget_cache(start + len(token_ids))",
        (_CATCHING_UP,),
    ),
    Mutant(
        "the cache of rejected tokens kept",
        _SEQUENCE,
        "        del self.token_ids[length:]\n        self._forget_cache(length)\n",
        "        del self.token_ids[length:]\n",
        ("tests/draft_service/test_rounds.py::test_output_is_plain_decodings",),
    ),
    Mutant(
        "one rejected token stays",
        _VERIFIER,
        "proposal.base_length + outcome.num_accepted)",
        "proposal.base_length + outcome.num_accepted + 1)",
        _VERDICTS,
    ),
    Mutant(
        "a prefix reused beyond what is committed",
        _SEQUENCE,
        "min(limit, self.num_committed) // size",
        "limit // size",
        _SEQUENCES,
    ),
    Mutant(
        "draft tokens findable by others",
        _SEQUENCE,
        "min(self.num_cached, self.num_committed) // self",
        "self.num_cached // self",
        _SEQUENCES,
    ),
    Mutant(
        "committed tokens findable before they are run",
        _SEQUENCE,
        "min(self.num_cached, self.num_committed) // self",
        "min(len(self.block_table) * self._pool.block_size, self.num_committed) // self",
        _SEQUENCES,
    ),
    Mutant(
        "a block known by its own tokens alone",
        _POOL,
        _KEY,
        "digest_size=16",
        _BLOCKS,
    ),
    Mutant(
        "tenants share prefixes",
        _POOL,
        "blake2b(cache_domain.encode(), ",
        'blake2b(b"", ',
        _BLOCKS,
    ),
    Mutant(
        "shared blocks written in place",
        _SEQUENCE,
        "if self._pool.references(self.block_table[i]) > 1",
        "if self._pool.references(self.block_table[i]) > 2",
        _SEQUENCES,
    ),
    Mutant(
        "a shared block made own without its content",
        _SEQUENCE,
        "index * self._pool.block_size < self.num_cached",
        "(index + 1) * self._pool.block_size < self.num_cached",
        _SEQUENCES,
    ),
    Mutant(
        "a row sees the one behind it",
        _ATTENTION,
        "hidden = keys > rows\n",
        "hidden = keys > rows + 1\n",
        _ATTENDED,
    ),
    Mutant(
        "a window one too long",
        _ATTENTION,
        "keys <= rows - window",
        "keys < rows - window",
        _ATTENDED,
    ),
    Mutant(
        "a window one too short",
        _ATTENTION,
        "keys <= rows - window",
        "keys <= rows - window + 1",
        _ATTENDED,
    ),
    Mutant(
        "a kernel's window one too long",
        _ATTENTION,
        "else call.window - 1, 0)",
        "else call.window, 0)",
        _ATTENDED,
    ),
    Mutant(
        "positions counted from the first row of a step",
        _RUNNER,
        "for p in range(span.start, span.end)]",
        "for p in range(span.end - span.start)]",
        ("tests/engine/test_model_runner.py",),
    ),
    Mutant(
        "padded rows of the head emitted",
        _RUNNER,
        "output.logits[0, :, : self._vocabulary_size]",
        "output.logits[0]",
        ("tests/engine/test_model_runner.py::test_padded_head_is_cut",),
    ),
    Mutant(
        "lean: padded rows of the head emitted",
        _LEAN_RUNNER,
        "logits[:, : self._vocabulary_size].float()",
        "logits.float()",
        ("tests/verify_service/test_session.py::test_padded_rows_are_never_emitted",),
    ),
    Mutant(
        "lean: positions counted from the first row of a step",
        _LEAN_RUNNER,
        "for p in range(span.start, span.end)]",
        "for p in range(span.end - span.start)]",
        (_CATCHING_UP,),
    ),
    Mutant(
        "lean: a row sees the one behind it",
        _LEAN_ATTENTION,
        "rows = torch.arange(span.start, span.end)[:, None]",
        "rows = torch.arange(span.start + 1, span.end + 1)[:, None]",
        _LEAN_ATTENDED,
    ),
    Mutant(
        "lean: a window one too long",
        _LEAN_ATTENTION,
        "causal_mask(keys, rows, window, ",
        "causal_mask(keys, rows, window and window + 1, ",
        _LEAN_ATTENDED,
    ),
    Mutant(
        "laws of a step handed to the wrong sessions",
        _ENGINE,
        "Extended(laws[first:last], queue_s",
        "Extended(laws[::-1][first:last][::-1], queue_s",
        ("tests/draft_service/test_model_drafter.py::test_sessions_share_steps",),
    ),
    Mutant(
        "rows whose laws are wanted taken from the cache",
        _SCHEDULER,
        "            sequence.num_cached = min(sequence.num_cached, first_logit)\n",
        "",
        ("tests/engine/test_engine.py", "tests/engine/test_scheduler.py"),
    ),
    Mutant(
        "a step that waits for whoever was long away",
        _RETURNS,
        "if self._absence_s.get(sequence, math.inf) <= self._patience_s",
        "if self._absence_s.get(sequence, math.inf) < math.inf",
        ("tests/engine/test_returns.py",),
    ),
    Mutant(
        "a step that waits from now on, again and again",
        _RETURNS,
        "left_at + self._patience_s",
        "now + self._patience_s",
        ("tests/engine/test_returns.py",),
    ),
    Mutant(
        "steps that wait for nobody",
        _ENGINE,
        "                self._gather()\n",
        "",
        ("tests/engine/test_engine.py",),
    ),
)
