// Weights of 8 bits, packed [panel][k / 4][64][4] as value + 128, with a scale per output and group of 32 inputs, [panel][k / 32][64].
//
// Few rows: the weights become floats in registers and meet bf16 activations (weight-only). More rows: activations are rounded to 8
// bits too, by groups of 32 as well, and four products are summed by one instruction (W8A8). One scale per output and row instead of
// groups kept the logits of a random 160 M model within a cosine of 0.9967 of bf16's; 0.999 is asked for.
#pragma once

#include <limits>

#include "linear.h"

namespace pagoda {

constexpr int kGroup = 32;

inline __m512i spread4(const int8_t *from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// W8A8 of `R` <= 3 rows: more would not leave registers for the whole and the float sums.
template <int R> inline void few_w8a8(const Rows &x, int first, const uint8_t *panel, const bf16 *scales, int inputs, __m512 (*sums)[kVectors]) {
    const int groups = inputs / kGroup;
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
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
            const __m512 scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) {
                const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[static_cast<int64_t>(first + r) * groups + group]));
                sums[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[r][v]), both, sums[r][v]);
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
template <int Byte> inline __m512 byte_to_float(__m512i lanes) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(Byte == 3 ? lanes : _mm512_slli_epi32(lanes, 24 - 8 * Byte), 24));
}

template <int R, int Byte> inline void add_byte(const bf16 *x, int inputs, const __m512i (&lanes)[kVectors], Sums<R> &sums) {
    for (int v = 0; v < kVectors; ++v) {
        const __m512 weight = byte_to_float<Byte>(lanes[v]);
        for (int r = 0; r < R; ++r)
            sums[r][v] = _mm512_fmadd_ps(weight, _mm512_set1_ps(to_float(x[static_cast<int64_t>(r) * inputs + Byte])), sums[r][v]);
    }
}

template <int R> inline void panel_w8a16(const bf16 *x, const uint8_t *panel, const bf16 *scales, int inputs, Sums<R> &sums) {
    for (auto &row : sums)
        for (auto &sum : row) sum = _mm512_setzero_ps();
    for (int group = 0; group < inputs / kGroup; ++group) {
        Sums<R> part;
        for (auto &row : part)
            for (auto &sum : row) sum = _mm512_setzero_ps();
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
            const __m512 scale = load_bf16(scales + (group * kVectors + v) * 16);
            for (int r = 0; r < R; ++r) sums[r][v] = _mm512_fmadd_ps(part[r][v], scale, sums[r][v]);
        }
    }
}

// One row to 8 bits: per group of 32, scale = largest magnitude / 127, NaN where the group holds one, so that it stays to be seen.
// `shift` is what the offset of the weights adds to a group's sum, negated.
inline void quantise(const bf16 *row, int inputs, int8_t *narrow, float *scale, int32_t *shift) {
    for (int group = 0; group < inputs / kGroup; ++group) {
        const __m512 low = load_bf16(row + group * kGroup), high = load_bf16(row + group * kGroup + 16);
        const bool odd = _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) != 0;
        const float largest = odd ? std::numeric_limits<float>::quiet_NaN() : _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)), second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(narrow + group * kGroup), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(narrow + group * kGroup + 16), _mm512_cvtepi32_epi8(second));
        scale[group] = largest / 127.0f;
        shift[group] = odd ? 0 : -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
    }
}

} // namespace pagoda
