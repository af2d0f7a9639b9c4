"""Calls: questions to the engine whose answers come later. Used by `client`, in the event loop only."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Calls(Generic[T]):
    """By number, which the answer names."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, asyncio.Future[T]] = {}

    def open(self) -> tuple[int, asyncio.Future[T]]:
        """A new question."""
        self._last += 1
        answer = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        return self._last, answer

    def drop(self, call: int) -> None:
        """It was never asked."""
        del self._waiting[call]

    def fail(self, error: Exception) -> None:
        """No answer comes any more."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def answer(self, call: int, answer: T) -> bool:
        """Whether the question is still waited for."""
        waiting = self._waiting.pop(call, None)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(answer)
        return True
