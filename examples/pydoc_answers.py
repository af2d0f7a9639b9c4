"""Questions about Python and their answers, taken from the text that ships with Python (`pydoc_data`).

`train_tiny.py` teaches them to a model; tests call `questions()` again and so know what that model has to say. Pure text: knows no
tokenizer and no torch. Another minor version of Python words some topics differently, hence answers differ with the interpreter.
"""

from __future__ import annotations

import keyword
import pydoc
import re
from collections.abc import Iterator, Mapping
from pydoc_data import topics as pydoc_topics
from typing import NamedTuple

TOPICS: Mapping[str, str] = pydoc_topics.topics

# An answer holds at most 48 tokens, but this module knows no tokenizer. 40 words and marks came to at most 43 tokens of the
# trained vocabulary with Python 3.11, 3.12 and 3.13; training refuses an answer that is longer all the same.
MAX_PIECES = 40
MIN_WORDS = 6

_UNDERLINE = re.compile(r"^([*=\-~^])\1{2,}$")
_STATEMENT = re.compile(r'^The "(\w+)" statement$')
_TITLE_CASE = re.compile(r"\b(?!Python|Boolean)[A-Z](?=[a-z]+\b)")
_SENTENCE_END = re.compile(r'(?<=[.:])["\')]?\s+(?=[A-Z"(*])')
_CLAUSE_END = re.compile(r"[,;:]\s| \(|\s—\s| – ")
# What is left of such a sentence after a cut says nothing.
_CONDITION = re.compile(r"(If|When|Although|Because|While|Since)\b")
_NO_PROSE = re.compile(r"(New|Added|Changed|Deprecated) (in|since) version|See (also|section)\b|[\w.]+\(.*\)$|[|+>]")
_PIECE = re.compile(r"\w+|[^\w\s]")
# What Sphinx leaves in plain text: cross references in brackets, footnote marks, emphasis; order matters.
_MARKUP = (
    (re.compile(r"(?<=[a-z])-\s+(?=[a-z])"), "-"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"\s*\((?:[Ss]ee|[Ff]or|by default)\b[^()]*\)"), ""),
    (re.compile(r"\s*\[\d+\]"), ""),
    (re.compile(r"\*\*?([^\s*](?:[^*]*[^\s*])?)\*\*?"), r"\1"),
    (re.compile(r"[“”]"), '"'),
    (re.compile(r"[‘’]"), "'"),
)


class QA(NamedTuple):
    """A question as a user types it, and the whole answer the model gives."""

    question: str
    answer: str


def questions(topics: Mapping[str, str] = TOPICS) -> list[QA]:
    """Every question with its answer: unique questions, always in the same order."""
    answers = {name: answer for name in sorted(topics) if (answer := first_sentence(topics[name]))}
    asked: dict[str, str] = {}
    for name, answer in answers.items():
        for question in _about_topic(topics[name].splitlines()[0].strip()):
            asked.setdefault(question, answer)
    for word in keyword.kwlist:
        topic = _topic_of_keyword(word)
        if topic in answers:
            asked.setdefault(f"What does {word} mean?", answers[topic])
            asked.setdefault(f"Explain the keyword {word}.", answers[topic])
    return [QA(question, answer) for question, answer in asked.items()]


def first_sentence(text: str) -> str | None:
    """The first sentence of prose under a topic's title as a complete, unmarked sentence; None where there is none that stands alone."""
    for paragraph in _prose(text):
        sentence = _shorten(_SENTENCE_END.split(clean(paragraph), maxsplit=1)[0])
        if sentence is not None and len(sentence.split()) >= MIN_WORDS:
            return sentence
    return None


def clean(text: str) -> str:
    """One line without markup."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def pieces(text: str) -> int:
    """Words and marks, the measure of `MAX_PIECES`."""
    return len(_PIECE.findall(text))


def _about_topic(title: str) -> tuple[str, ...]:
    statement = _STATEMENT.match(title)
    if statement is not None:
        return f"What is the {statement[1]} statement?", f"Tell me about the {statement[1]} statement."
    subject = re.sub(r"\s*\(.*\)| — .*|[\"“”]", "", title)
    subject = _TITLE_CASE.sub(lambda word: word[0].lower(), subject)
    return f"What should I know about {subject}?", f"Tell me about {subject}."


def _topic_of_keyword(word: str) -> str | None:
    """Follows pydoc's own table: keyword → topic, (topic, see also) or the name of another entry."""
    tables: dict[str, object] = {**pydoc.Helper.topics, **pydoc.Helper.keywords}
    target = tables.get(word)
    while isinstance(target, str) and target in tables:
        target = tables[target]
    return target[0] if isinstance(target, tuple) else None


def _prose(text: str) -> Iterator[str]:
    """Paragraphs at the left margin, without headings, grammar, lists, signatures and version notes; the first section only."""
    for paragraph in re.split(r"\n\s*\n", text)[1:]:
        lines = paragraph.strip("\n").splitlines()
        if len(lines) > 1 and _UNDERLINE.match(lines[1]):
            continue
        if re.match(r'["\'*“A-Z]', lines[0]) and not lines[0].startswith("* ") and not _NO_PROSE.match(clean(paragraph)):
            yield paragraph


def _shorten(sentence: str) -> str | None:
    """At most `MAX_PIECES` long, cut where a clause ends; None where no clause ends early enough."""
    ends = [match.start() for match in _CLAUSE_END.finditer(sentence)] if not _CONDITION.match(sentence) else []
    for end in (len(sentence), *reversed(ends)):
        head = sentence[:end].rstrip(" .:;,")
        if pieces(head) < MAX_PIECES and head.count("(") == head.count(")") and head.count('"') % 2 == 0:
            return head + "."
    return None
