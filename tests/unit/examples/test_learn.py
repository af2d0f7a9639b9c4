"""What training counts as known by heart: on a model of a few hundred weights."""

import math

import pytest
import torch
from tiny.checkpoint import lessons, train_tokenizer
from tiny.learn import Lesson, NotLearnedError, Plan, learn, measure, rate
from tiny.llama import Llama, Shape

SHAPE = Shape(vocab=12, hidden=16, intermediate=16, layers=1, heads=4, kv_heads=2)
LESSONS = [Lesson([1, 2], [3, 4, 0]), Lesson([1, 5, 6], [7, 0])]


def model():
    torch.manual_seed(1)
    return Llama(SHAPE)


def greedy(llama, lesson):
    """Decodes token by token, without padding or batch: slower, and nothing shared with `measure`."""
    tokens = list(lesson.prompt)
    for _ in lesson.answer:
        tokens.append(int(llama.logits(llama(torch.tensor([tokens])))[0, -1].argmax()))
    return tokens[len(lesson.prompt) :]


@pytest.mark.deep
def test_what_is_measured_as_exact_is_what_greedy_decoding_says():
    llama = model()
    assert measure(llama, LESSONS).exact == 0.0
    seen = []
    learned = learn(llama, LESSONS, Plan(batch=2, check_every=5, margin=1.0, max_steps=300), seen.append)
    assert learned.fp32.exact == learned.bf16.exact == 1.0
    assert learned.fp32.min_margin >= 1.0
    assert [greedy(llama, lesson) for lesson in LESSONS] == [lesson.answer for lesson in LESSONS]
    assert [progress.step for progress in seen] == list(range(1, learned.steps))


def test_one_wrong_token_makes_its_lesson_inexact():
    llama = model()
    known = [lesson._replace(answer=greedy(llama, lesson)) for lesson in LESSONS]
    assert measure(llama, known).exact == 1.0
    assert measure(llama, known).min_margin > 0
    first, *rest = known[1].answer
    wrong = [known[0], known[1]._replace(answer=[(first + 1) % SHAPE.vocab, *rest])]
    assert measure(llama, wrong).exact == 0.5
    assert measure(llama, wrong).min_margin < 0


@pytest.mark.deep
def test_a_training_out_of_steps_says_how_far_it_came():
    with pytest.raises(NotLearnedError, match=r"after 2 steps 0\.0% of 2 answers are exact.*seed 7"):
        learn(model(), LESSONS, Plan(batch=2, check_every=1, max_steps=2), lambda _: None)


def test_the_rate_warms_up_and_ends_at_a_tenth():
    plan = Plan(warmup=10, decay=110)
    assert rate(0, plan) == pytest.approx(0.1)
    assert rate(10, plan) == pytest.approx(1.0)
    assert rate(60, plan) == pytest.approx(0.55)
    assert rate(10_000, plan) == pytest.approx(0.1)
    assert all(math.isfinite(rate(step, plan)) for step in range(200))


def test_an_answer_over_the_limit_is_refused():
    tokenizer = train_tokenizer(["a b c"])
    assert len(lessons(tokenizer, [("q", "a b c")], 6)) == 1
    with pytest.raises(ValueError, match="accepted: 3"):
        lessons(tokenizer, [("q", "a b c")], 3)
