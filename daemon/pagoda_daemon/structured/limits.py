"""What one grammar may cost. Read by the front (size, depth), the pool (patience) and the workers (CPU, memory, fuel). Numbers,
and the library's options.

A worker does not trust its library: the kernel counts CPU time and memory and kills. Fuel is the library's own count, which mostly ends an
exploding grammar within milliseconds and with a sentence.
"""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 64 * 2**10
MAX_DEPTH: Final = 64

CPU_S: Final = 2.0
"""Of one grammar, from its first byte to its first mask; each token allows it CPU_PER_TOKEN_S more (a usual mask takes 0.05 ms)."""
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
is followed as `anyOf`; where that differs, the front has told the client."""
