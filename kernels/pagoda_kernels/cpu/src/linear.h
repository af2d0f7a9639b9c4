// y = x W^T: the weights stream through once, the rows of x stay in cache.
//
// bf16 weights are packed in panels of 64 outputs, [panel][k / 2][64][2]: one contiguous stream for the prefetcher, and each 64-byte
// line holds what one dot-product instruction needs. A row's sums run over k in one order whatever else is in the batch, so an answer
// does not depend on the batch, on chunking or on the number of threads.
#pragma once

#include "simd.h"

namespace pagoda {

constexpr int kPanel = 64;
constexpr int kVectors = kPanel / 16;
constexpr int kTile = 6; // 6 rows x 4 vectors of sums + 4 vectors of weights: 28 of 32 registers

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

// What the rows of x look like to the kernels: bf16 always, and beside it 8-bit where int8 weights want it (linear_int8.h).
struct Rows {
    const bf16 *wide;
    const int8_t *narrow;
    const float *scale;   // [rows, groups]
    const int32_t *shift; // [rows, groups]
    int count;
};

template <int R> using Sums = __m512[R][kVectors];

inline void prefetch_lines(const void *from) {
    for (int v = 0; v < kVectors; ++v) _mm_prefetch(static_cast<const char *>(from) + kAhead + v * 64, _MM_HINT_T0);
}

// Sums of `R` rows, `stride` elements apart, over one panel.
template <int R> inline void panel_bf16(const bf16 *x, const bf16 *panel, int inputs, Sums<R> &sums) {
    for (auto &row : sums)
        for (auto &sum : row) sum = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 2) {
        __m512bh weights[kVectors];
        for (int v = 0; v < kVectors; ++v) weights[v] = load_pairs(panel + (k * kVectors + v * 2) * 16);
        prefetch_lines(panel + k * kPanel);
        for (int r = 0; r < R; ++r) {
            const __m512bh pair = broadcast_pair(x + static_cast<int64_t>(r) * inputs + k);
            for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], pair);
        }
    }
}

} // namespace pagoda
