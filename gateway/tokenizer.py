"""The target's tokenizer, from the archive that the verify tier hands out.

The only file that knows `transformers`. It knows no model and no session.
"""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.errors import InvalidArgument, Unavailable

_USUAL_ROLES = frozenset({"system", "user", "assistant"})


class Tokenizer:
    """Text and conversations to token ids, token ids to text. Safe to use from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of plain text, with the special tokens that the tokenizer adds by itself.

        Raises:
            InvalidArgument: the text holds what the vocabulary cannot express.
        """
        token_ids = self._encode(text, field="prompt.text", add_special_tokens=True)
        bos = self._tokenizer.bos_token_id
        # A text that spells out the first token would otherwise get it twice.
        if bos is not None and token_ids[:2] == (bos, bos):
            return token_ids[1:]
        return token_ids

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """The ids of a conversation of (role, content), ready for the answer to follow.

        Raises:
            InvalidArgument: there is no template, or it refuses the conversation, or does not know
                a role.
        """
        template = self._tokenizer.chat_template
        if not template:
            raise InvalidArgument(
                "prompt.chat", "the model has no chat template; send text instead"
            )
        if not messages:
            raise InvalidArgument("prompt.chat.messages", "must hold at least one message")
        for index, (role, _) in enumerate(messages):
            if role not in _USUAL_ROLES and not _names_role(str(template), role):
                raise InvalidArgument(
                    f"prompt.chat.messages[{index}].role",
                    f"the model's chat template does not know {role!r}",
                )
        try:
            text: str = self._tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages],
                tokenize=False,
                add_generation_prompt=True,
            )
        except TemplateError as error:
            raise InvalidArgument("prompt.chat", f"the chat template refuses it: {error}") from None
        # The template writes the special tokens itself.
        return self._encode(text, field="prompt.chat", add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _encode(self, text: str, *, field: str, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            return tuple(
                self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)
            )
        except Exception as error:  # the library has no class of its own for this
            raise InvalidArgument(field, f"cannot be tokenized: {error}") from None


def load_tokenizer(archive: bytes, directory: Path) -> Tokenizer:
    """Unpacks an archive into `directory`, unless it is there already, and loads it.

    Safe where several processes do it at once: the directory appears whole or not at all.

    Raises:
        Unavailable: the archive is not one of a tokenizer.
    """
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        unpacked = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".new-"))
        try:
            _unpack(archive, unpacked)
            unpacked.rename(directory)
        except OSError:
            if not directory.exists():  # another process was not faster: a real failure
                raise
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return open_tokenizer(directory)


def open_tokenizer(directory: Path) -> Tokenizer:
    """Loads an unpacked tokenizer.

    Raises:
        Unavailable: it cannot be loaded.
    """
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(directory, local_files_only=True))
    except Exception as error:  # whatever the library raises on a foreign file
        raise Unavailable(
            f"{directory}: not a tokenizer: {error}", reason="BAD_TOKENIZER"
        ) from None


def _unpack(archive: bytes, directory: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            for info in files.infolist():
                name = Path(info.filename).name  # flat: no entry may point elsewhere
                (directory / name).write_bytes(files.read(info))
    except zipfile.BadZipFile as error:
        raise Unavailable(
            f"the tokenizer's archive is broken: {error}", reason="BAD_TOKENIZER"
        ) from None


def _names_role(template: str, role: str) -> bool:
    """Whether a template spells the role out; most print any role that they are given."""
    return re.search(rf"(['\"]){re.escape(role)}\1", template) is not None
