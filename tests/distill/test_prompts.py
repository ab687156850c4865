"""Chats: varied, repeatable, and filled in completely."""

from __future__ import annotations

from paceline.distill.prompts import Exchange, PromptWriter

LONG = " ".join(f"word{i}" for i in range(200))
EARLIER = [Exchange(({"role": "user", "content": "Say much."},), LONG)]


def test_the_same_pool_is_the_same_chats() -> None:
    """Collecting can go on where it stopped; another pool or seed asks something else."""
    first = PromptWriter(1).write(3, 50, EARLIER)
    assert PromptWriter(1).write(3, 50, EARLIER) == first
    assert PromptWriter(1).write(4, 50, EARLIER) != first
    assert PromptWriter(2).write(3, 50, EARLIER) != first


def test_chats_are_varied_and_complete() -> None:
    """Few chats repeat, no place of a template stays open, and the user speaks last."""
    chats = PromptWriter(0).write(0, 400, [])
    questions = [chat[-1]["content"] for chat in chats]
    assert len(set(questions)) > 300
    assert [text for text in questions if "{" in text and "JSON" not in text] == []
    assert {"user"} == {chat[-1]["role"] for chat in chats}
    assert {"system", "user"} == {chat[0]["role"] for chat in chats}


def test_two_places_of_a_kind_differ() -> None:
    """Two topics of one prompt are two topics."""
    writer = PromptWriter(0)
    for chat in writer.write(0, 300, []):
        text = chat[-1]["content"]
        if text.startswith("Compare "):
            one, _, other = text.removeprefix("Compare ").rstrip(".").partition(" and ")
            assert one != other


def test_earlier_answers_come_back() -> None:
    """As the turn before a follow-up, and, cut, as a passage."""
    chats = PromptWriter(0).write(0, 300, EARLIER)
    followed = [chat for chat in chats if len(chat) == 3]
    assert all((EARLIER[0].chat[-1], LONG) == (c[0], c[1]["content"]) for c in followed)
    assert followed
    passages = [c[-1]["content"] for c in chats if "word0 word1" in c[-1]["content"]]
    assert passages
    assert not any("word120" in text for text in passages)


def test_words_are_topics_too() -> None:
    """More than half of the topics are words that were given, and no other place takes them."""
    words = [f"Zz{letter}" for letter in "abcdefgh"]
    texts = [chat[-1]["content"] for chat in PromptWriter(0, (), words).write(0, 400, [])]
    asked = [text.removeprefix("Explain ") for text in texts if text.endswith(" to a beginner.")]
    share = sum("Zz" in text for text in asked) / len(asked)
    assert 0.2 < share < 1.0
    assert not any("Zz" in text for text in texts if text.startswith(("Translate", "Solve")))


def test_own_prompts_are_half() -> None:
    """What a user gives is asked in about half of the chats."""
    chats = PromptWriter(0, ["my own question"]).write(0, 200, [])
    count = sum(chat[-1]["content"] == "my own question" for chat in chats)
    assert 70 < count < 130
