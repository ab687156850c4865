"""The tokenizer: what it adds, what it refuses, and how it gets from an archive to disk."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from gateway.tokenizer import Tokenizer, load_tokenizer
from gateway.tokenizers import Tokenizers
from paceline.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = [("system", "be kind"), ("user", "hello"), ("assistant", "hi"), ("user", "bye")]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{{ raise_exception('tools are not served') }}{% endif %}"
    "{{ m['role'] + ':' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def letters(*, bos: bool = True, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of ASCII characters and nothing else, which may begin every text with <s>."""
    vocabulary = {chr(code): code for code in range(32, 127)}
    vocabulary |= {"<s>": 200, "</s>": 201}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<none>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 200)]
        )
    special = {"bos_token": "<s>"} if bos else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", **special)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def archive_of(tmp_path: Path) -> Callable[[PreTrainedTokenizerFast], bytes]:
    """Packs a tokenizer as a verify replica does."""

    def pack(tokenizer: PreTrainedTokenizerFast) -> bytes:
        tokenizer.save_pretrained(tmp_path / "saved")
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as files:
            for path in (tmp_path / "saved").iterdir():
                files.write(path, path.name)
        return archive.getvalue()

    return pack


def test_text_begins_as_the_tokenizer_begins_it() -> None:
    """Plain text gets the special tokens that the tokenizer adds by itself."""
    assert (200, 97, 98) == Tokenizer(letters()).encode("ab")
    assert (97, 98) == Tokenizer(letters(bos=False)).encode("ab")


def test_never_two_beginnings() -> None:
    """B50: a text that spells out the first token gets it once."""
    assert (200, 97) == Tokenizer(letters()).encode("<s>a")


def test_an_empty_text() -> None:
    """B68: without a beginning of its own a tokenizer makes nothing of nothing."""
    assert ((200,), ()) == (
        Tokenizer(letters()).encode(""),
        Tokenizer(letters(bos=False)).encode(""),
    )


def test_a_character_outside_the_vocabulary() -> None:
    """What cannot be expressed is refused, not dropped."""
    with pytest.raises(InvalidArgument) as refused:
        Tokenizer(letters()).encode("aéb")
    assert "prompt.text" == refused.value.field


def test_chat_equals_the_librarys() -> None:
    """B50: a conversation gives exactly the library's ids, with exactly one beginning."""
    tokenizer = letters()
    expected: Any = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in TURNS],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    token_ids = Tokenizer(tokenizer).encode_chat(TURNS)
    assert tuple(expected) == token_ids
    assert 1 == token_ids.count(200)


@pytest.mark.parametrize(
    ("turns", "field", "message"),
    [
        ([], "prompt.chat.messages", "at least one"),
        ([("user", "a"), ("wizard", "b")], "prompt.chat.messages[1].role", "wizard"),
        ([("tool", "a")], "prompt.chat", "tools are not served"),
        ([("user", "é")], "prompt.chat", "cannot be tokenized"),
    ],
)
def test_conversations_that_are_refused(
    turns: list[tuple[str, str]], field: str, message: str
) -> None:
    """No message, a role that the template does not know, or one that it refuses."""
    with pytest.raises(InvalidArgument, match=message) as refused:
        Tokenizer(letters()).encode_chat(turns)
    assert field == refused.value.field


def test_a_role_that_the_template_spells_out() -> None:
    """Roles beyond the usual three are the template's to know."""
    template = TEMPLATE.replace("'tool'", "'none'").replace("m['content']", "m['content'] ~ 'tool'")
    assert Tokenizer(letters(template=template)).encode_chat([("tool", "a")])


def test_a_model_without_a_template() -> None:
    """Chat needs a template; without one the answer says so."""
    with pytest.raises(InvalidArgument, match="no chat template"):
        Tokenizer(letters(template=None)).encode_chat(TURNS)


def test_special_tokens_are_not_text() -> None:
    """Decoding leaves them out."""
    assert "ab" == Tokenizer(letters()).decode([200, 97, 98, 201])


def test_from_archive_to_disk_and_back(
    tmp_path: Path, archive_of: Callable[[PreTrainedTokenizerFast], bytes]
) -> None:
    """An unpacked tokenizer does what the packed one did, and leaves nothing half written."""
    loaded = load_tokenizer(archive_of(letters()), tmp_path / "cache" / "x")
    original = Tokenizer(letters())
    assert original.encode("<s>some text") == loaded.encode("<s>some text")
    assert original.encode_chat(TURNS) == loaded.encode_chat(TURNS)
    assert ["x"] == [path.name for path in (tmp_path / "cache").iterdir()]


def test_what_is_unpacked_already_is_not_unpacked_again(
    tmp_path: Path, archive_of: Callable[[PreTrainedTokenizerFast], bytes]
) -> None:
    """A directory that another process made is used as it is."""
    load_tokenizer(archive_of(letters()), tmp_path / "x")
    assert (200, 97) == load_tokenizer(b"not even an archive", tmp_path / "x").encode("a")


def test_no_entry_leaves_the_directory(tmp_path: Path) -> None:
    """An archive cannot write elsewhere."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("../../escaped", "x")
    with pytest.raises(Unavailable):
        load_tokenizer(archive.getvalue(), tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.parent.glob("escaped")) and not (tmp_path / "a" / "escaped").exists()


def test_a_broken_archive(tmp_path: Path) -> None:
    """Bytes that are no archive are a broken replica, not a bug of ours; nothing stays behind."""
    with pytest.raises(Unavailable, match="archive"):
        load_tokenizer(b"garbage", tmp_path / "cache" / "x")
    assert [] == list((tmp_path / "cache").iterdir())


async def test_each_model_is_fetched_once(
    tmp_path: Path, archive_of: Callable[[PreTrainedTokenizerFast], bytes]
) -> None:
    """Replicas that start together share one fetch, and the next process finds it on disk."""
    archive = archive_of(letters())
    num_fetched = 0

    async def fetch() -> bytes:
        nonlocal num_fetched
        num_fetched += 1
        await asyncio.sleep(0)
        return archive

    tokenizers = Tokenizers(tmp_path / "cache")
    found = await asyncio.gather(*(tokenizers.get("../model:1", fetch) for _ in range(3)))
    assert 1 == num_fetched == len(set(map(id, found)))
    await Tokenizers(tmp_path / "cache").get("../model:1", fetch)
    assert 1 == num_fetched
    await tokenizers.get("model:2", fetch)
    assert 2 == num_fetched
    assert 2 == len(list((tmp_path / "cache").iterdir()))
