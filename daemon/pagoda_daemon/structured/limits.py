"""What one grammar may cost. Read by the front (size, depth), the pool (patience) and the workers (CPU, memory, fuel). Numbers,
and the library's options.

A worker does not trust its library: the kernel counts CPU time and memory and kills. Fuel is the library's own count, which mostly ends an
exploding grammar within milliseconds and with a sentence.
"""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 64 * 2**10
MAX_DEPTH: Final = 64

COMPILE_CPU_S: Final = 0.5
"""Of one grammar on trial, from its first byte to its first mask. CPU time, so a busy machine changes no verdict.

Measured with a vocabulary of 128,000 tokens (toy vocabulary: half of it), ms of CPU on one core of a cloud VM: 400 schemas of the tests
(`drawn_schema`) median 1.3, most 5; 502 CloudFormation resource schemas median 0.5, most 35; 400 properties 14; an enum of 2,000
strings 8; 20 properties of 20 alternatives each 178; 1,500 properties (too large for an answer) 288."""
CPU_S: Final = 2.0
"""The same in a worker of answers, where it is done again: a verdict that was close must not end an answer. Each token allows
CPU_PER_TOKEN_S more (a usual mask takes 0.05 ms)."""
CPU_PER_TOKEN_S: Final = 0.005
MEMORY_BYTES: Final = 256 * 2**20
WORKER_BYTES: Final = 1024 * 2**20
"""Of all the grammars that one worker holds."""
PATIENCE_S: Final = 20.0
"""By the clock, for one job: a worker that is stopped uses no CPU."""

STEP_FUEL: Final = 200_000
STEP_ITEMS: Final = 50_000
START_FUEL: Final = 1_000_000
LEXER_STATES: Final = 50_000
GRAMMAR_SYMBOLS: Final = 200_000

JSON_OPTIONS: Final = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]", "coerce_one_of": True}
"""Of the grammar library. At most one blank between the parts of JSON: models that lose the thread write blanks until max_tokens. A `oneOf`
is followed as `anyOf`; where that differs, the front has warned the client."""
