// Sums of rows over one panel with AVX-512: bf16, and 8-bit weights with either kind of activations. panel_256.h has the same functions.
// Included by linear.h.
#pragma once

#include "linear.h"

namespace pagoda {

// Sums of `R` rows, `stride` elements apart, over one panel.
template <int R> inline void panel_bf16(const bf16 *x, const bf16 *panel, int inputs, Ahead &ahead, Sums<R> &sums) {
    Sums<R> here; // through a reference, all 24 would be stored for every pair
    for (auto &row : here)
        for (auto &sum : row) sum = zeros();
    const auto step = [&](int k) __attribute__((always_inline)) {
        Pairs weights[kVectors];
        for (int v = 0; v < kVectors; ++v) weights[v] = load_pairs(panel + (k * kVectors + v * 2) * 16);
        prefetch_lines(panel + k * kPanel);
        for (int r = 0; r < R; ++r) {
            const Pair pair = broadcast_pair(x + static_cast<int64_t>(r) * inputs + k);
            for (int v = 0; v < kVectors; ++v) here[r][v] = dot(here[r][v], weights[v], pair);
        }
    };
    int k = 0;
    for (const int quiet = 2 * ahead.quiet(inputs / 2); k < quiet; k += 2) step(k);
    for (; k < inputs; k += 2) {
        ahead.next();
        step(k);
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = here[r][v];
}

inline __m512i spread4(const int8_t *from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// W8A8 of `R` <= 3 rows: more would not leave registers for the whole and the float sums.
template <int R> inline void few_w8a8(const Rows &x, int first, const uint8_t *panel, const bf16 *scales, int inputs, Floats (*sums)[kVectors]) {
    const int groups = inputs / kGroup;
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = zeros();
    const auto step = [&](int group, const auto &ask) __attribute__((always_inline)) {
        __m512i whole[R][kVectors];
        for (int r = 0; r < R; ++r)
            for (auto &sum : whole[r]) sum = _mm512_set1_epi32(x.shift[static_cast<int64_t>(first + r) * groups + group]);
        for (int k = group * kGroup; k < (group + 1) * kGroup; k += 4) {
            __m512i weights[kVectors];
            for (int v = 0; v < kVectors; ++v) weights[v] = _mm512_loadu_si512(panel + (k / 4 * kVectors + v) * 64);
            prefetch_lines(panel + k * kPanel);
            ask();
            for (int r = 0; r < R; ++r) {
                const __m512i four = spread4(x.narrow + static_cast<int64_t>(first + r) * inputs + k);
                for (int v = 0; v < kVectors; ++v) whole[r][v] = _mm512_dpbusd_epi32(whole[r][v], weights[v], four);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            const Floats scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) {
                const Floats both = mul(scale, all_of(x.scale[static_cast<int64_t>(first + r) * groups + group]));
                sums[r][v] = fmadd(_mm512_cvtepi32_ps(whole[r][v]), both, sums[r][v]);
            }
        }
    };
    int group = 0;
    for (const int quiet = x.ahead->quiet(inputs / 4) / (kGroup / 4); group < quiet; ++group) step(group, [] {});
    for (; group < groups; ++group) step(group, [&] { x.ahead->next(); });
}

template <int R> inline void panel_w8a8(const Rows &x, int first, const uint8_t *panel, const bf16 *scales, int inputs, Sums<R> &sums) {
    constexpr int kHalf = R > 3 ? 3 : R;
    few_w8a8<kHalf>(x, first, panel, scales, inputs, sums);
    if constexpr (R > 3) few_w8a8<R - 3>(x, first + 3, panel, scales, inputs, sums + 3);
}

// Weight-only: byte `k % 4` of each lane as a float.
template <int Byte> inline Floats byte_to_float(__m512i lanes) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(Byte == 3 ? lanes : _mm512_slli_epi32(lanes, 24 - 8 * Byte), 24));
}

template <int R, int Byte> inline void add_byte(const bf16 *x, int inputs, const __m512i (&lanes)[kVectors], Sums<R> &sums) {
    for (int v = 0; v < kVectors; ++v) {
        const Floats weight = byte_to_float<Byte>(lanes[v]);
        for (int r = 0; r < R; ++r)
            sums[r][v] = fmadd(weight, all_of(from_bf16(x[static_cast<int64_t>(r) * inputs + Byte])), sums[r][v]);
    }
}

template <int R> inline void panel_w8a16(const bf16 *x, const uint8_t *panel, const bf16 *scales, int inputs, Sums<R> &sums) {
    for (auto &row : sums)
        for (auto &sum : row) sum = zeros();
    for (int group = 0; group < inputs / kGroup; ++group) {
        Sums<R> part;
        for (auto &row : part)
            for (auto &sum : row) sum = zeros();
        for (int k = group * kGroup; k < (group + 1) * kGroup; k += 4) {
            __m512i lanes[kVectors]; // with the offset taken off again
            for (int v = 0; v < kVectors; ++v)
                lanes[v] = _mm512_xor_si512(_mm512_loadu_si512(panel + (k / 4 * kVectors + v) * 64), _mm512_set1_epi8(-128));
            prefetch_lines(panel + k * kPanel);
            add_byte<R, 0>(x + k, inputs, lanes, part);
            add_byte<R, 1>(x + k, inputs, lanes, part);
            add_byte<R, 2>(x + k, inputs, lanes, part);
            add_byte<R, 3>(x + k, inputs, lanes, part);
        }
        for (int v = 0; v < kVectors; ++v) {
            const Floats scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) sums[r][v] = fmadd(part[r][v], scale, sums[r][v]);
        }
    }
}

} // namespace pagoda
