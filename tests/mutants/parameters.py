"""Mistakes in sampling parameters: their order, their ties, the text that a row stands behind."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SAMPLING = "paceline/engine/sampling.py"
_ADJUSTMENT = "paceline/engine/adjustment.py"
_HISTORY = "paceline/engine/history.py"
_ENGINE = "paceline/engine/engine.py"
_TASK = "paceline/engine/task.py"
_VERIFIER = "verify_service/verifier.py"

_AT_EVERY_ROW = ("tests/law/test_parameters.py",)
_LAWS = ("tests/engine/test_sampling.py",)
_ADJUSTED = ("tests/engine/test_adjustment.py",)
_SERVED = ("tests/verify_service/test_parameters.py",)
_PROMPT = (
    "tests/verify_service/test_parameters.py::test_prompt_log_probs_are_the_teacher_forced_ones",
)

_ROW = "History(ids[:length], prompt_length)"
_ROWS = "[(params, history) for history in histories]"
_TOP_K = """\
    if 0 < params.top_k < len(values):
        kept = top_k_ids(values, params.top_k)
        ids, values = ids[kept], values[kept]
"""
_TOP_P = """\
    if params.top_p < 1.0:
        kept = _top_p(values, peak, params.temperature, params.top_p)
        ids, values = ids[kept], values[kept]
"""
_PENALIZE = "    _penalize(row, params, history)\n"
_BIAS = """\
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        row[list(ids)] += np.array(biases, dtype=np.float32)
"""

MUTANTS = (
    Mutant("top-p before top-k", _SAMPLING, _TOP_K + _TOP_P, _TOP_P + _TOP_K, _LAWS),
    Mutant(
        "top-p before the temperature",
        _SAMPLING,
        "_top_p(values, peak, params.temperature, params.top_p)",
        "_top_p(values, peak, 1.0, params.top_p)",
        _LAWS,
    ),
    Mutant(
        "min-p before the temperature",
        _SAMPLING,
        "(weights >= params.min_p).nonzero()",
        "(_weights(values, peak, 1.0) >= params.min_p).nonzero()",
        _LAWS,
    ),
    Mutant("no temperature", _SAMPLING, "    weights /= temperature\n", "", _LAWS),
    Mutant(
        "the law not normalised after min-p",
        _SAMPLING,
        "    weights /= np.add.reduce(weights)\n",
        "    weights /= np.add.reduce(_weights(values, peak, params.temperature))\n",
        _LAWS,
    ),
    Mutant(
        "ties at a boundary to the highest id",
        _SAMPLING,
        "equals[-surplus:]",
        "equals[:surplus]",
        _LAWS,
    ),
    Mutant(
        "greedy ties to the highest id",
        _SAMPLING,
        "peaks = rows.argmax(axis=1).tolist()",
        "peaks = (rows.shape[1] - 1 - rows[:, ::-1].argmax(axis=1)).tolist()",
        ("tests/law/test_public_cases.py::test_ties_go_to_the_lowest_id",),
    ),
    Mutant(
        "greedy before the penalties",
        _SAMPLING,
        "wanted.is_greedy and not wanted.adjusts_logits for wanted",
        "wanted.is_greedy for wanted",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "stale penalties at draft rows",
        _HISTORY,
        _ROW,
        "History(ids[:first], prompt_length)",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "rejected tokens counted",
        _HISTORY,
        _ROW,
        "History(ids, prompt_length)",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "the token before a row not counted",
        _HISTORY,
        _ROW,
        "History(ids[: max(length - 1, prompt_length)], prompt_length)",
        ("tests/engine/test_history.py",),
    ),
    Mutant(
        "draft tokens counted as prompt",
        _HISTORY,
        _ROW,
        "History(ids[:length], max(first, prompt_length))",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "parameters missing at the bonus row",
        _TASK,
        _ROWS,
        "[*[(params, h) for h in histories[:-1]], (SamplingParams(), None)]",
        _SERVED,
    ),
    Mutant(
        "parameters missing at the verified rows",
        _TASK,
        _ROWS,
        "[*[(SamplingParams(), None)] * (num_rows - 1), (params, histories[-1])]",
        _SERVED,
    ),
    Mutant(
        "min_tokens missing at the bonus row",
        _TASK,
        _ROWS,
        "[*[(params, h) for h in histories[:-1]],"
        " (__import__('dataclasses').replace(params, min_tokens=0), histories[-1])]",
        ("tests/verify_service/test_parameters.py::test_stop_tokens_wait_for_min_tokens",),
    ),
    Mutant(
        "committed output counted as prompt",
        _ENGINE,
        "prompt_length=session.prompt_length",
        "prompt_length=len(session.token_ids)",
        (
            "tests/verify_service/test_parameters.py::test_a_session_opened_again_counts_from_its_prompt",
        ),
    ),
    Mutant(
        "log-probabilities of the rows behind",
        "verify_service/verifier.py",
        "extended.logits[: len(committed)]",
        "extended.logits[-len(committed) :]",
        ("tests/verify_service/test_parameters.py::test_log_probs_are_the_teacher_forced_ones",),
    ),
    Mutant(
        "log-probabilities of the prompt one row late",
        _VERIFIER,
        "prompt[start + 1 : end + 1], num_top",
        "prompt[start:end], num_top",
        _PROMPT,
    ),
    Mutant(
        "log-probabilities of the first chunk of a prompt alone",
        _VERIFIER,
        "while (start := len(found)) < len(prompt) - 1:",
        "if (start := len(found)) < len(prompt) - 1:",
        _PROMPT,
    ),
    Mutant(
        "one token more than min_tokens",
        _ADJUSTMENT,
        "len(output) < params.min_tokens",
        "len(output) <= params.min_tokens",
        _ADJUSTED,
    ),
    Mutant(
        "presence and frequency count the prompt",
        _ADJUSTMENT,
        "np.unique(history.output, return_counts=True)",
        "np.unique(history.token_ids, return_counts=True)",
        _ADJUSTED,
    ),
    Mutant(
        "repetition counts the output alone",
        _ADJUSTMENT,
        "seen = history.token_ids  #",
        "seen = history.output  #",
        _ADJUSTED,
    ),
    Mutant(
        "the bias before the penalties",
        _ADJUSTMENT,
        _PENALIZE + _BIAS,
        _BIAS + _PENALIZE,
        _ADJUSTED,
    ),
    Mutant(
        "a banned sequence begun in the prompt",
        _ADJUSTMENT,
        "output[max(0, len(output) - longest) :]",
        "history.token_ids[max(0, len(history.token_ids) - longest) :]",
        _ADJUSTED,
    ),
)
