"""Turns the names of sources into drafters. Blocking: models are loaded here."""

from __future__ import annotations

from dataclasses import replace

from draft_service.config import DraftConfig
from draft_service.drafters import Drafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NAME as NGRAM
from draft_service.drafters.ngram import NgramDrafter
from paceline.engine.assembly import assemble
from paceline.engine.constraint import Grammars
from paceline.tier import report_progress

_QUANTIZED = "quantized:int8"


def load_drafters(config: DraftConfig) -> dict[str, Drafter]:
    """The configured sources by name, the default first.

    Raises:
        PacelineError: a model cannot be loaded; what was started before it is stopped.
    """
    drafters: dict[str, Drafter] = {}
    try:
        for name in dict.fromkeys(config.source):
            drafters[name] = _load(name, config)
    except BaseException:
        for drafter in drafters.values():
            drafter.stop()
        raise
    return drafters


def _load(name: str, config: DraftConfig) -> Drafter:
    if name == NGRAM:
        return NgramDrafter(config.max_draft_tokens)
    # The bare prefix means: the target's own weights.
    model_name = f"{_QUANTIZED}:{config.target}" if name == _QUANTIZED else name
    settings = replace(config.engine_settings(), target=config.target)
    loaded, engine = assemble(model_name, settings, report_progress)
    grammars = Grammars(loaded.tokenizer_archive, loaded.identity)
    return ModelDrafter(name, engine, loaded.identity, grammars)
