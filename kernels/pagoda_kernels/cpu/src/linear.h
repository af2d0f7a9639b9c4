// y = x W^T: the weights stream through once, the rows of x stay in cache.
//
// bf16 weights are packed in panels of 64 outputs, [panel][k / 2][64][2]: one contiguous stream for the prefetcher, and each 64-byte
// line holds the pairs of 16 outputs. A row's sums run over k in one order whatever else is in the batch, so an answer
// does not depend on the batch, on chunking or on the number of threads.
#pragma once

#include <algorithm>

#include "simd.h"

namespace pagoda {

constexpr int kPanel = 64;
constexpr int kVectors = kPanel / 16;
constexpr int kGroup = 32; // inputs of an 8-bit matrix that share a scale

// Lines are asked for this far ahead of their use. Measured at 1 row, 512 MB of weights, one core: 11.8 GB/s without, 14.2 at 2 KB,
// 15.0 at 4 KB, 14.7 at 8 KB, where plain reading gets 15.4: the hardware's own prefetcher stops at every page's end.
constexpr int kAhead = 4096;

enum class Kind : int32_t { kBf16 = 0, kInt8 = 1 };

struct Linear {
    const void *weight; // packed: above, and linear_int8.h
    const bf16 *scale;  // int8: linear_int8.h; else null
    const float *bias;  // [outputs rounded up to 64] or null
    int32_t outputs;
    int32_t inputs;
    Kind kind;

    int panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// Lines that are asked for one by one while the sums of a tile run: what is wanted of memory behind them, here and there. The sums of many
// rows leave the memory idle: at 32 rows of 768 inputs a panel takes 26 us, and reading it 7.
class Ahead {
  public:
    void clear() { count_ = run_ = left_ = lines_ = 0; }
    // In the last of `calls` calls of `next`: asked for earlier, the lines would have left the first-level cache again.
    void end_with(int calls) { wait_ = std::max(0, calls - lines_); }
    void add(const void *from, int lines) {
        lines_ += lines;
        const char *begin = static_cast<const char *>(from);
        if (count_ > 0 && runs_[count_ - 1].at + runs_[count_ - 1].lines * 64 == begin) runs_[count_ - 1].lines += lines;
        else if (count_ < kRuns) runs_[count_++] = {begin, lines};
    }
    // How many of the next `calls` would ask for nothing: a loop makes them not.
    int quiet(int calls) {
        if (lines_ == 0) return calls;
        const int found = std::min(wait_, calls);
        wait_ -= found;
        return found;
    }
    void next() {
        if (left_ == 0) {
            if (run_ == count_) return;
            at_ = runs_[run_].at;
            left_ = runs_[run_++].lines;
        }
        _mm_prefetch(at_, _MM_HINT_T0);
        at_ += 64;
        --left_;
    }

  private:
    static constexpr int kRuns = kTile * kVectors;
    struct Run {
        const char *at;
        int lines;
    };
    Run runs_[kRuns];
    int count_ = 0, run_ = 0, left_ = 0, lines_ = 0, wait_ = 0;
    const char *at_ = nullptr;
};

// What the rows of x look like to the kernels: factors always, and beside them 8-bit where int8 weights want it (linear_int8.h).
struct Rows {
    const Factor *wide;
    const int8_t *narrow;
    const float *scale;   // [rows, groups]
    const int32_t *shift; // [rows, groups]
    int count;
    Ahead *ahead;
};

template <int R> using Sums = Floats[R][kVectors];

// Always inlined: gcc takes a function that only prefetches for one without effect, and drops calls of it.
__attribute__((always_inline)) inline void prefetch_lines(const void *from) {
    for (int v = 0; v < kVectors; ++v) _mm_prefetch(static_cast<const char *>(from) + kAhead + v * 64, _MM_HINT_T0);
}

} // namespace pagoda

#ifdef __AVX512BF16__
#include "panel_512.h"
#else
#include "panel_256.h"
#endif
