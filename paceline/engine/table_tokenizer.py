"""The tokenizer of a scripted model: one token per character, nothing added.

It is saved and loaded like any other tokenizer, so the gateway needs to know no tables.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.engine.table_model import TableModel

_RAW_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def build_tokenizer(model: TableModel) -> PreTrainedTokenizerFast:
    """Builds the tokenizer. Encoding a character outside the alphabet raises."""
    vocabulary = {character: token_id for token_id, character in enumerate(model.alphabet)}
    # The unknown token is not in the vocabulary: that makes an unknown character an error.
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    eos = None if model.eos_token_id is None else model.alphabet[model.eos_token_id]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        chat_template=_RAW_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
