"""What a tier prints at its end: its time and its CPU, against the one that it is bound by."""

import pytest
from support.suite.pool import Budget


@pytest.mark.parametrize(
    ("budget", "line"),
    [
        ("make a=120", "make a: 100 s, 300 s of CPU, within its budget of 120 s"),
        ("make a=90", "make a: 100 s, 300 s of CPU, OVER its budget of 90 s"),
        ("make a=310 CPU", "make a: 100 s, 300 s of CPU, within its budget of 310 s of CPU"),
        ("make a=290 CPU", "make a: 100 s, 300 s of CPU, OVER its budget of 290 s of CPU"),
    ],
)
def test_a_budget_is_of_the_clock_unless_it_says_cpu(budget: str, line: str):
    assert Budget.parse(budget).line(took=100, cpu=300) == line
