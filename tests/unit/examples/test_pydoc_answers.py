"""The text half of the tiny model: which questions, which answers."""

import keyword
import re
from functools import cache

import pytest
from pydoc_answers import MAX_PIECES, MIN_WORDS, QA, TOPICS, clean, first_sentence, pieces, questions

asked = cache(questions)


def test_there_are_enough_questions_and_each_is_asked_once():
    assert len(asked()) >= 60
    assert len({pair.question for pair in asked()}) == len(asked())
    assert len({pair.answer for pair in asked()}) >= 60


def test_the_order_does_not_depend_on_the_order_of_the_topics():
    assert questions(dict(reversed(TOPICS.items()))) == asked()


def test_an_answer_is_one_short_sentence_without_markup():
    assert sorted(pair.answer for pair in asked() if not one_short_sentence(pair.answer)) == []


def one_short_sentence(answer):
    return (
        answer == answer.strip()
        and (answer[0] == '"' or answer[0].isupper())
        and answer.endswith(".")
        and len(answer.split()) >= MIN_WORDS
        and pieces(answer) <= MAX_PIECES
        and not re.search(r"\*\w|\w\*|::|\[\d+\]|``|\n|  |^See |[“”‘’]", answer.replace("import *", ""))
        and answer.count("(") == answer.count(")")
        and answer.count('"') % 2 == 0
    )


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("What is the with statement?", 'The "with" statement is used to wrap the execution of a block'),
        ("What does lambda mean?", "Lambda expressions (sometimes called lambda forms) are used to create"),
        ("What does or mean?", "In the context of Boolean operations"),
        ("Tell me about lambdas.", "Lambda expressions"),
        ("What should I know about Boolean operations?", "In the context of Boolean operations"),
    ],
)
def test_a_question_gets_its_topics_answer(question, beginning):
    assert dict(asked())[question].startswith(beginning)


def test_every_keyword_that_python_explains_is_asked_about():
    silent = {word for word in keyword.kwlist if f"What does {word} mean?" not in dict(asked())}
    assert silent <= {"False", "None", "True"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("T\n*\n\n   grammar ::= x\n\nA *name* is\nbound (see section Names) to an object.  More.", "A name is bound to an object."),
        ("T\n*\n\nNew in version 3.5.\n\nThe body is run once for each item.", "The body is run once for each item."),
        ("T\n*\n\nPart\n====\n\nSome built-\nin types act very much like numbers [1].", "Some built-in types act very much like numbers."),
        ("T\n*\n\nSee section Names for all of the details of it.", None),
        ("T\n*\n\nToo short.", None),
        ("T\n*\n\nA call is an act, " + "and so on " * 20 + "until the end.", None),
        ("T\n*\n\nA call is an act of one function, " + "and so on " * 20 + "until the end.", "A call is an act of one function."),
        ("T\n*\n\nIf a call is an act of one function, " + "then so on " * 20 + "until the end.", None),
    ],
)
def test_first_sentence(text, sentence):
    assert first_sentence(text) == sentence


def test_clean_keeps_an_operator_that_looks_like_emphasis():
    assert clean('the form "from ... import *" binds **all** of *them*') == 'the form "from ... import *" binds all of them'


def test_a_topic_without_a_sentence_is_not_asked_about():
    assert questions({"power": "The power operator\n***\n\n   power ::= x\n"}) == []
    assert questions({"power": "Powers\n***\n\nA power binds more tightly than a unary operator."}) == [
        QA("What should I know about powers?", "A power binds more tightly than a unary operator."),
        QA("Tell me about powers.", "A power binds more tightly than a unary operator."),
    ]
