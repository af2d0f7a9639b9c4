// The C functions that cpu/native.py calls. Nothing else of the library is seen from outside.
#include "decoder.h"

namespace {

// Nothing is thrown into the caller, who may be C: memory that is not there is a reason like any other.
template <class Work> const char *guarded(const Work &work) {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return "no memory is left";
    }
}

} // namespace

extern "C" {

// A library older than native.py would read other fields: the sizes of what they exchange tell.
int64_t pagoda_sizes() { return static_cast<int64_t>(sizeof(PagodaLowRank) << 48 | sizeof(PagodaShape) << 32 | sizeof(PagodaLayer) << 16 | sizeof(PagodaStep)); }

// Null where memory or threads lack.
pagoda::Decoder *pagoda_decoder_new(const PagodaShape *shape, const PagodaLayer *layers) {
    try {
        return new pagoda::Decoder(*shape, layers);
    } catch (const std::exception &) {
        return nullptr;
    }
}
void pagoda_decoder_free(pagoda::Decoder *decoder) { delete decoder; }
const char *pagoda_decoder_step(pagoda::Decoder *decoder, const PagodaStep *step) {
    return guarded([&] { return decoder->step(*step); });
}
// Between two steps only. The decoder reads `modules` and what they point to until the slot holds others.
const char *pagoda_decoder_hold(pagoda::Decoder *decoder, int32_t slot, const PagodaLowRank *modules) {
    return guarded([&] { return decoder->hold(slot, modules); });
}
const char *pagoda_decoder_copy(pagoda::Decoder *decoder, const int32_t *pairs, int32_t count) {
    return guarded([&] { return decoder->copy_blocks(pairs, count); });
}
const uint64_t *pagoda_decoder_spent(const pagoda::Decoder *decoder) { return decoder->spent(); }

// Reads `bytes` with `threads` threads and nothing else: the ceiling that a step at one row is measured against.
int64_t pagoda_read(const char *from, int64_t bytes, int32_t threads) {
    pagoda::Team team(threads, 1);
    std::atomic<int64_t> total{0};
    const int shares = 64;
    const int64_t share = bytes / shares / 128 * 128;
    team.run([&](int) {
        team.each(0, shares, [&](int index) {
            pagoda::Words even = pagoda::all_of(0), odd = even;
            for (const char *line = from + index * share, *end = line + share; line < end; line += 128) {
                _mm_prefetch(line + pagoda::kAhead, _MM_HINT_T0);
                _mm_prefetch(line + pagoda::kAhead + 64, _MM_HINT_T0);
                even = pagoda::add(even, pagoda::load_words(line));
                odd = pagoda::add(odd, pagoda::load_words(line + 64));
            }
            total += pagoda::sum_of(pagoda::add(even, odd));
        });
    });
    return total;
}
}
