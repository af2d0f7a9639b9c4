// Sums of rows over one panel with AVX2: bf16, and 8-bit weights with either kind of activations. panel_512.h has the same functions.
// Included by linear.h.
//
// The sums of four rows for one of a panel's four vectors are in 8 registers, so a panel is walked through in pieces that stay in the
// first-level cache: once for each vector, of one row for all four. Measured on a Zen 3 at 2,048 inputs, GFLOP/s: 4 rows 59 to 77 of about 80;
// 6 rows with sums in 12 of the 16 registers 47, because gcc 12 puts some of them into memory.
#pragma once

#include "linear.h"

namespace pagoda {

constexpr int kPiece = 128; // inputs: 16 KB of a panel in bf16

// Adds `count` inputs to the sums of `R` rows for `V` neighbouring vectors of a panel, from `at` on. An output's products are added in the
// order of the inputs, whatever R and V.
template <int R, int V, class Ask> inline void add_piece(const float *x, int64_t stride, const bf16 *weights, int count, int at, Sums<R> &sums, const Ask &ask) {
    __m256 low[R][V], high[R][V]; // apart: gcc 12 would keep a struct of both in memory
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) low[r][v] = sums[r][at + v].low, high[r][v] = sums[r][at + v].high;
    for (int k = 0; k < count; k += 2) {
        const bf16 *line = weights + k * kPanel;
        ask(line);
        for (int v = 0; v < V; ++v) {
            const Pairs pairs = load_pairs(line + (at + v) * 32);
            const auto step = [&](__m256 left, __m256 right, int odd) __attribute__((always_inline)) {
                for (int r = 0; r < R; ++r) {
                    const __m256 factor = _mm256_broadcast_ss(x + r * stride + k + odd);
                    low[r][v] = _mm256_fmadd_ps(left, factor, low[r][v]);
                    high[r][v] = _mm256_fmadd_ps(right, factor, high[r][v]);
                }
            };
            step(first_of(pairs.low), first_of(pairs.high), 0);
            step(second_of(pairs.low), second_of(pairs.high), 1);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums[r][at + v] = {low[r][v], high[r][v]};
}

// Sums of `R` rows over one panel.
template <int R> inline void panel_bf16(const float *x, const bf16 *panel, int inputs, Ahead &ahead, Sums<R> &sums) {
    constexpr int kSide = R == 1 ? 4 : R == 2 ? 2 : 1; // vectors side by side: their sums of R rows are in 8 registers
    for (auto &row : sums)
        for (auto &sum : row) sum = zeros();
    for (int first = 0; first < inputs; first += kPiece) {
        const int count = std::min(kPiece, inputs - first);
        const bf16 *piece = panel + static_cast<int64_t>(first) * kPanel;
        int quiet = ahead.quiet(count / 2);
        add_piece<R, kSide>(x + first, inputs, piece, count, 0, sums, [&](const bf16 *line) __attribute__((always_inline)) {
            prefetch_lines(line);
            if (--quiet < 0) ahead.next();
        });
        for (int v = kSide; v < kVectors; v += kSide) add_piece<R, kSide>(x + first, inputs, piece, count, v, sums, [](const bf16 *) {});
    }
}

// Four bytes of a row as the two pairs of 16-bit numbers that meet the bytes 0 and 2, and 1 and 3, of each lane of weights.
struct Bytes {
    __m256i even, odd;
};
inline Bytes spread4(const int8_t *from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    const __m256i all = _mm256_set1_epi32(four);
    return {_mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), _mm256_srai_epi16(all, 8)};
}

// sum += the four products of each lane. Exact: two products of at most 255 * 128 are a 32-bit number.
inline __m256i dot_bytes(__m256i sum, __m256i even, __m256i odd, const Bytes &x) {
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(even, x.even), _mm256_madd_epi16(odd, x.odd)));
}

// W8A8 of `R` rows: a group of 32 inputs after the other, each once for every vector of the panel.
template <int R> inline void panel_w8a8(const Rows &x, int first, const uint8_t *panel, const bf16 *scales, int inputs, Sums<R> &sums) {
    const int groups = inputs / kGroup;
    const __m256i low_bytes = _mm256_set1_epi16(0xff);
    for (auto &row : sums)
        for (auto &sum : row) sum = zeros();
    for (int group = 0; group < groups; ++group) {
        for (int v = 0; v < kVectors; ++v) {
            __m256i low[R], high[R];
            for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_set1_epi32(x.shift[static_cast<int64_t>(first + r) * groups + group]);
            for (int k = group * kGroup; k < (group + 1) * kGroup; k += 4) {
                if (v == 0) {
                    prefetch_lines(panel + k * kPanel);
                    if (x.ahead->quiet(1) == 0) x.ahead->next();
                }
                const Words weights = load_words(panel + (k / 4 * kVectors + v) * 64);
                const __m256i even_low = _mm256_and_si256(weights.low, low_bytes), even_high = _mm256_and_si256(weights.high, low_bytes);
                const __m256i odd_low = _mm256_srli_epi16(weights.low, 8), odd_high = _mm256_srli_epi16(weights.high, 8);
                for (int r = 0; r < R; ++r) {
                    const Bytes four = spread4(x.narrow + static_cast<int64_t>(first + r) * inputs + k);
                    low[r] = dot_bytes(low[r], even_low, odd_low, four);
                    high[r] = dot_bytes(high[r], even_high, odd_high, four);
                }
            }
            const Floats scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) {
                const Floats both = mul(scale, all_of(x.scale[static_cast<int64_t>(first + r) * groups + group]));
                sums[r][v] = fmadd(Floats{_mm256_cvtepi32_ps(low[r]), _mm256_cvtepi32_ps(high[r])}, both, sums[r][v]);
            }
        }
    }
}

// Weight-only: byte `k % 4` of each lane as a float.
template <int Byte> inline __m256 byte_to_float(__m256i lanes) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(Byte == 3 ? lanes : _mm256_slli_epi32(lanes, 24 - 8 * Byte), 24));
}

template <int R, int Byte> inline void add_byte(const float *x, int inputs, Words lanes, Floats (&sums)[R]) {
    const Floats weight{byte_to_float<Byte>(lanes.low), byte_to_float<Byte>(lanes.high)};
    for (int r = 0; r < R; ++r) sums[r] = fmadd(weight, all_of(x[static_cast<int64_t>(r) * inputs + Byte]), sums[r]);
}

template <int R> inline void panel_w8a16(const float *x, const uint8_t *panel, const bf16 *scales, int inputs, Sums<R> &sums) {
    const __m256i offset = _mm256_set1_epi8(-128); // taken off again
    for (auto &row : sums)
        for (auto &sum : row) sum = zeros();
    for (int group = 0; group < inputs / kGroup; ++group)
        for (int v = 0; v < kVectors; ++v) {
            Floats part[R];
            for (auto &sum : part) sum = zeros();
            for (int k = group * kGroup; k < (group + 1) * kGroup; k += 4) {
                const Words stored = load_words(panel + (k / 4 * kVectors + v) * 64);
                const Words lanes{_mm256_xor_si256(stored.low, offset), _mm256_xor_si256(stored.high, offset)};
                if (v == 0) prefetch_lines(panel + k * kPanel);
                add_byte<R, 0>(x + k, inputs, lanes, part);
                add_byte<R, 1>(x + k, inputs, lanes, part);
                add_byte<R, 2>(x + k, inputs, lanes, part);
                add_byte<R, 3>(x + k, inputs, lanes, part);
            }
            const Floats scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) sums[r][v] = fmadd(part[r], scale, sums[r][v]);
        }
}

} // namespace pagoda
