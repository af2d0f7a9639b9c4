"""Bounds: how many tokens are reserved for a request, and what is sent to its replica. Pure; called by requests/limiter.py."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagoda_gateway.limits.rules import Policy

# Of a request that sets no max_tokens, if the quota limits tokens and names no default.
DEFAULT_OUTPUT: Final = 4096


class Wish(NamedTuple):
    """What a request may take: tokens of its prompts at most, tokens of each answer (None: it sets no bound) by `field`, and how many
    answers each prompt gets. `one_prompt`: it has exactly one."""

    prompt: int
    answer: int | None
    answers: int = 1
    field: str = "max_tokens"
    one_prompt: bool = False


class Bounds(NamedTuple):
    """`tokens` to reserve; `output` is the bound of all answers together. `context` and `default` are for the replica, if they are set."""

    tokens: int
    output: int
    context: int | None
    default: int | None


UNBOUNDED: Final = Bounds(0, 0, None, None)


class TooLong(NamedTuple):
    """The request asks for a longer answer than a quota allows."""

    field: str
    message: str


def bounds(policy: Policy, wish: Wish, *, counts_tokens: bool) -> Bounds | TooLong:
    """Returns the bounds of a request under a tenant's rules."""
    output, default, context = policy.tightest("output"), policy.tightest("default_output"), policy.tightest("context")
    if wish.answer is not None and output is not None and wish.answer > output[0]:
        return TooLong(wish.field, f"{wish.field} must be at most {output[0]} by TenantQuota {output[1]}, got {wish.answer}")
    named = [bound[0] for bound in (default, output) if bound is not None]
    unset = min(named) if named else DEFAULT_OUTPUT if counts_tokens else None
    answer = wish.answer if wish.answer is not None else unset or 0
    tokens, most = wish.prompt + wish.answers * answer, context[0] if context else None
    if most is not None and wish.one_prompt:  # each answer and the prompt before it are within the context
        tokens = min(tokens, wish.answers * most)
    return Bounds(tokens, wish.answers * answer, most, unset if wish.answer is None else None)
