// Whether a step stays inside the decoder's arrays. Asked once per step, before anything is written: a wrong number from above must be
// an error of that step and not somebody else's memory. 64 rows of 32 blocks take about a microsecond.
#pragma once

#include "decoder.h"

namespace pagoda {

inline bool all_below(const int32_t *values, int64_t count, int32_t limit) {
    bool fine = true; // no early return: this way it is vector code
    for (int64_t i = 0; i < count; ++i) fine &= static_cast<uint32_t>(values[i]) < static_cast<uint32_t>(limit);
    return fine;
}

// Null where the step is sound.
inline const char *wrong(const PagodaShape &shape, const PagodaStep &step, const Adapters &adapters) {
    if (!all_below(step.ids, step.tokens, shape.vocab)) return "a token id is outside of the vocabulary";
    if (!all_below(step.positions, step.tokens, std::min(shape.positions, step.table_width * kBlock))) return "a position is behind the last one or behind its table";
    if (!all_below(step.rows, step.tokens, step.table_rows)) return "a token's row has no table";
    if (!all_below(step.tables, static_cast<int64_t>(step.table_rows) * step.table_width, shape.blocks)) return "a table names a block that does not exist";
    for (int row = 0; step.adapters != nullptr && row < step.table_rows; ++row)
        if (!adapters.holds(step.adapters[row])) return "a row has an adapter that is not held";
    if (!all_below(step.wanted, step.wanted_count, step.tokens)) return "a token that is not there is wanted";
    for (int i = 1; i < step.wanted_count; ++i)
        if (step.wanted[i] <= step.wanted[i - 1]) return "the wanted tokens are not in ascending order";
    if (!all_below(step.places, step.wanted_count, step.wanted_count)) return "a wanted token has no place in the answer";
    return nullptr;
}

} // namespace pagoda
