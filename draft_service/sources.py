"""Turns the names of sources into drafters. Blocking: models are loaded here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

from draft_service.config import DraftConfig
from draft_service.drafters import Drafter
from draft_service.drafters.grammar import NAME as GRAMMAR
from draft_service.drafters.grammar import GrammarLookup
from draft_service.drafters.hybrid import PREFIX as HYBRID
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.lookup import Lookup, LookupDrafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NAME as NGRAM
from draft_service.drafters.ngram import NgramIndex
from draft_service.drafters.suffix import NAME as SUFFIX
from draft_service.drafters.suffix import Pasts, SuffixLookup
from paceline.engine.assembly import assemble
from paceline.engine.constraint import Grammars
from paceline.engine.model_source import name_own_draft
from paceline.engine.model_tokens import ModelTokens, check_tokens, read_tokens
from paceline.errors import InvalidArgument
from paceline.records import DraftSource, ModelIdentity, SessionSpec
from paceline.tier import report_progress

_OWN_WEIGHTS = re.compile(r"quantized:int[48]|(quantized:int[48]:)?early-exit:\d+")
"""Names without a model at their end: they are made of the target's."""


def load_drafters(config: DraftConfig) -> dict[str, Drafter]:
    """The configured sources by name, the default first; parts of a hybrid are sources too.

    Raises:
        PacelineError: a model cannot be loaded, or its tokens are not the target's; what was
            started before it is stopped.
    """
    loader = _Loader(config)
    try:
        for name in config.source:
            loader.load(name)
    except BaseException:
        for drafter in loader.drafters.values():
            drafter.stop()
        raise
    # A hybrid's parts were loaded before it, and must not be the default for that.
    order = dict.fromkeys((*config.source, *loader.drafters))
    return {name: loader.drafters[name] for name in order}


class _Loader:
    """Loads each source once."""

    def __init__(self, config: DraftConfig) -> None:
        self._config = config
        self.drafters: dict[str, Drafter] = {}

    def load(self, name: str) -> Drafter:
        """The source of that name."""
        if name not in self.drafters:
            self.drafters[name] = self._make(name)
        return self.drafters[name]

    def _make(self, name: str) -> Drafter:
        if name.startswith(HYBRID):
            return self._hybrid(name)
        if name == NGRAM:
            return self._lookup(DraftSource(name), lambda spec: NgramIndex(spec.token_ids))
        if name == SUFFIX:
            pasts = Pasts(self._config.history_tokens)
            return self._lookup(DraftSource(name), partial(SuffixLookup, pasts))
        if name == GRAMMAR:
            identity = self._target_tokens.identity()
            grammars = Grammars(self._target_tokens.archive, identity)
            make = partial(GrammarLookup, grammars, identity)
            return self._lookup(DraftSource(name, identity), make)
        return self._model(name)

    def _lookup(self, source: DraftSource, make: Callable[[SessionSpec], Lookup]) -> LookupDrafter:
        return LookupDrafter(source, self._config.max_draft_tokens, make)

    def _hybrid(self, name: str) -> HybridDrafter:
        *first, last = (self.load(part) for part in name.removeprefix(HYBRID).split("+"))
        lookups = [drafter for drafter in first if isinstance(drafter, LookupDrafter)]
        if not first or len(lookups) < len(first):
            raise InvalidArgument(
                "source", f"{name!r}: only the last of at least two parts may be a model"
            )
        return HybridDrafter(name, lookups, last)

    def _model(self, name: str) -> ModelDrafter:
        config = self._config
        settings = replace(config.engine_settings(), target=config.target)
        is_own = _OWN_WEIGHTS.fullmatch(name) is not None
        model_name = name_own_draft(name, config.target) if is_own else name
        if is_own or config.named_target is None:
            target = None
        else:
            target = self._target_tokens
            tokens = read_tokens(model_name, settings.cache_dir, report_progress, config.target)
            check_tokens(tokens, target, maps_ends=config.map_ends)
        loaded, engine = assemble(model_name, settings, report_progress)
        announced = _speaking(loaded.identity, target) if target else loaded.identity
        report_progress(
            f"source {name}: {loaded.identity.dtype} {loaded.identity.quantization or 'whole'},"
            f" {loaded.identity.vocabulary_size} ids, {announced.vocabulary_size} announced"
        )
        # The ends are those that the target knows, if the draft has them; the rest is about its
        # own ids.
        size, own_ends = loaded.identity.vocabulary_size, loaded.identity.eos_token_ids
        ends = tuple(t for t in announced.eos_token_ids if t < size) or own_ends
        own = replace(loaded.identity, eos_token_ids=ends)
        grammars = Grammars(loaded.tokenizer_archive, own)
        return ModelDrafter(DraftSource(name, announced), engine, loaded.identity, grammars)

    @cached_property
    def _target_tokens(self) -> ModelTokens:
        settings = self._config.engine_settings()
        return read_tokens(self._config.target, settings.cache_dir, report_progress)


def _speaking(identity: ModelIdentity, target: ModelTokens) -> ModelIdentity:
    """A model that was found to mean the same by its ids as the target, in the target's terms."""
    return replace(
        identity,
        tokenizer_fingerprint=target.fingerprint,
        vocabulary_size=target.vocabulary_size,
        eos_token_ids=target.eos_token_ids,
    )
