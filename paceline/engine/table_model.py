"""Scripted models: the next-token law is read from a JSON file instead of computed.

Anyone can check the sampling law through the real services with one. The runner keeps token ids
in its cache, by slot, and reads the text so far back through the block table, so a wrong block
table gives wrong laws here just as it would with a network. It knows no gRPC and no sampling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.engine.step import Span, Step
from paceline.errors import InvalidArgument, NotFound

TABLE_PREFIX = "table:"
"""Before the file, where a model is named."""
_KEYS = frozenset({"alphabet", "eos", "default", "suffixes", "positions"})
_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class TableModel:
    """A next-token law per situation. Token id `i` is the character `alphabet[i]`."""

    alphabet: str
    eos_token_id: int | None
    logits: torch.Tensor
    """Float32 [num_laws, V]: log-probabilities; row 0 is the default, log 0 is -inf."""
    position_rows: tuple[int, ...]
    """Row of `logits` for the i-th generated token."""
    suffix_rows: Mapping[tuple[int, ...], int]
    """Row of `logits` for a text that ends in these ids."""
    suffix_lengths: tuple[int, ...]
    """Lengths that occur in `suffix_rows`, longest first."""

    def find_row(self, tail: tuple[int, ...], generated_index: int) -> int:
        """Finds the law that predicts the next token.

        Args:
            tail: The last tokens of the text so far, `suffix_lengths[0]` of them where there are.
            generated_index: 0 for the first generated token; negative inside the prompt.

        Returns:
            A row of `logits`.
        """
        if 0 <= generated_index < len(self.position_rows):
            return self.position_rows[generated_index]
        for length in self.suffix_lengths:
            row = self.suffix_rows.get(tail[-length:])
            if row is not None:
                return row
        return 0


class TableRunner:
    """Runs steps over a `TableModel` (a `step.ModelRunner`). Its cache holds one id per slot."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self._logits = model.logits.numpy()
        self._reach = model.suffix_lengths[0] if model.suffix_lengths else 0
        self._ids_by_slot: list[int] = []
        self._block_size = 0

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates the cache, once, before the first step."""
        self._ids_by_slot = [-1] * (num_blocks * block_size)
        self._block_size = block_size

    def run(self, step: Step) -> torch.Tensor:
        """Runs one step.

        Returns:
            Float32 logits [sum of num_logits, V], spans in order, rows in order.
        """
        rows: list[int] = []
        for span in step.spans:
            self._write(span)
        for span in step.spans:
            rows.extend(self._find_rows(span))
        return torch.from_numpy(self._logits[np.array(rows, dtype=np.int64)])

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination), for copy on write."""
        size = self._block_size
        for source, destination in pairs:
            block = self._ids_by_slot[source * size : (source + 1) * size]
            self._ids_by_slot[destination * size : (destination + 1) * size] = block

    def _slot(self, span: Span, position: int) -> int:
        block, place = divmod(position, self._block_size)
        return span.block_table[block] * self._block_size + place

    def _write(self, span: Span) -> None:
        for position, token_id in enumerate(span.token_ids, span.start):
            self._ids_by_slot[self._slot(span, position)] = token_id

    def _find_rows(self, span: Span) -> list[int]:
        first = span.end - span.num_logits
        window_start = max(0, first + 1 - self._reach)
        window = tuple(
            self._ids_by_slot[self._slot(span, position)]
            for position in range(window_start, span.end)
        )
        # The row at position p has seen 0 .. p and predicts token p + 1.
        return [
            self._model.find_row(
                window[: position + 1 - window_start], position + 1 - span.prompt_length
            )
            for position in range(first, span.end)
        ]


def load_table(path: Path) -> TableModel:
    """Reads a table file.

    Raises:
        NotFound: There is no such file.
        InvalidArgument: It is not a table; the key is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"table file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument("table", f"{path} is not UTF-8") from error
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument("table", f"{path} is not JSON: {error}") from error
    return parse_table(table)


def parse_table(table: object) -> TableModel:
    """Checks a table and turns it into laws.

    Raises:
        InvalidArgument: A key is missing, unknown or malformed; it is named.
    """
    if not isinstance(table, dict):
        raise InvalidArgument("table", "must be a JSON object")
    for key in table:
        if key not in _KEYS:
            raise InvalidArgument(str(key), f"unknown key; known are {', '.join(sorted(_KEYS))}")
    alphabet = _parse_alphabet(table.get("alphabet"))
    laws = [_parse_law("default", table.get("default"), len(alphabet))]

    def add_law(key: str, law: object) -> int:
        laws.append(_parse_law(key, law, len(alphabet)))
        return len(laws) - 1

    position_rows = _parse_positions(table.get("positions", []), add_law)
    suffix_rows = _parse_suffixes(table.get("suffixes", {}), alphabet, add_law)
    return TableModel(
        alphabet=alphabet,
        eos_token_id=_parse_eos(table.get("eos"), alphabet),
        logits=torch.tensor(laws, dtype=torch.float64).log().to(torch.float32),
        position_rows=position_rows,
        suffix_rows=suffix_rows,
        suffix_lengths=tuple(sorted({len(suffix) for suffix in suffix_rows}, reverse=True)),
    )


def _parse_alphabet(alphabet: object) -> str:
    if not isinstance(alphabet, str) or not alphabet:
        raise InvalidArgument("alphabet", "must be a string of at least one character")
    if len(set(alphabet)) != len(alphabet):
        raise InvalidArgument("alphabet", "its characters must be distinct")
    if any("\ud800" <= character <= "\udfff" for character in alphabet):
        raise InvalidArgument("alphabet", "must not hold half of a surrogate pair")
    return alphabet


def _parse_eos(eos: object, alphabet: str) -> int | None:
    if eos is None:
        return None
    if not isinstance(eos, str) or len(eos) != 1 or eos not in alphabet:
        raise InvalidArgument("eos", "must be one character of the alphabet, or null")
    return alphabet.index(eos)


def _parse_positions(positions: object, add_law: Callable[[str, object], int]) -> tuple[int, ...]:
    if not isinstance(positions, list):
        raise InvalidArgument("positions", "must be a list of laws")
    return tuple(add_law(f"positions[{index}]", law) for index, law in enumerate(positions))


def _parse_suffixes(
    suffixes: object, alphabet: str, add_law: Callable[[str, object], int]
) -> dict[tuple[int, ...], int]:
    if not isinstance(suffixes, dict):
        raise InvalidArgument("suffixes", "must be an object from text to law")
    rows: dict[tuple[int, ...], int] = {}
    for suffix, law in suffixes.items():
        key = f"suffixes[{suffix!r}]"
        if not suffix:
            raise InvalidArgument(key, "must not be empty: that is what default is for")
        if not set(suffix) <= set(alphabet):
            raise InvalidArgument(key, "has a character outside the alphabet")
        rows[tuple(map(alphabet.index, suffix))] = add_law(key, law)
    return rows


def _parse_law(key: str, law: object, size: int) -> list[float]:
    """Checks one law: `size` probabilities that sum to 1."""
    if not isinstance(law, list) or len(law) != size:
        raise InvalidArgument(key, f"must be a list of {size} probabilities, one per character")
    if not all(_is_probability(value) for value in law):
        raise InvalidArgument(key, "each probability must be a number in [0, 1]")
    total = math.fsum(law)
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise InvalidArgument(key, f"must sum to 1 within {_SUM_TOLERANCE}, sums to {total!r}")
    return [float(value) for value in law]


def _is_probability(value: Any) -> bool:
    # JSON's true is a bool, which Python would take for the number 1.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
