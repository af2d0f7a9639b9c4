// Weights of 8 bits with one scale per output, packed [panel][k / 4][64][4].
//
// Few rows: the weights become floats in registers and meet bf16 activations (weight-only). More rows: activations are rounded to 8
// bits too, one scale per row, and four products are summed by one instruction (W8A8). Which is which: `kInt8WideRows`.
#pragma once

#include "linear.h"

namespace pagoda {

inline __m512i spread4(const uint8_t *from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// W8A8: integer sums are exact, so any order gives one result.
template <int R> inline void panel_w8a8(const Rows &x, int first, const int8_t *panel, const Linear &linear, int column, Sums<R> &sums) {
    __m512i whole[R][kVectors];
    for (auto &row : whole)
        for (auto &sum : row) sum = _mm512_setzero_si512();
    const uint8_t *rows = x.narrow + static_cast<int64_t>(first) * linear.inputs;
    for (int k = 0; k < linear.inputs; k += 4) {
        __m512i weights[kVectors];
        for (int v = 0; v < kVectors; ++v) weights[v] = _mm512_loadu_si512(panel + (k / 4 * kVectors + v) * 64);
        prefetch_lines(panel + k * kPanel);
        for (int r = 0; r < R; ++r) {
            const __m512i four = spread4(rows + static_cast<int64_t>(r) * linear.inputs + k);
            for (int v = 0; v < kVectors; ++v) whole[r][v] = _mm512_dpbusd_epi32(whole[r][v], four, weights[v]);
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        const __m512i shift = _mm512_loadu_si512(linear.sums + column + v * 16);
        const __m512 scale = _mm512_loadu_ps(linear.scale + column + v * 16);
        for (int r = 0; r < R; ++r) {
            const __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(whole[r][v], shift));
            sums[r][v] = _mm512_mul_ps(_mm512_mul_ps(value, scale), _mm512_set1_ps(x.scale[first + r]));
        }
    }
}

// Weight-only: byte `k % 4` of each lane, sign kept, as a float.
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

template <int R> inline void panel_w8a16(const bf16 *x, const int8_t *panel, const Linear &linear, int column, Sums<R> &sums) {
    for (auto &row : sums)
        for (auto &sum : row) sum = _mm512_setzero_ps();
    for (int k = 0; k < linear.inputs; k += 4) {
        __m512i lanes[kVectors];
        for (int v = 0; v < kVectors; ++v) lanes[v] = _mm512_loadu_si512(panel + (k / 4 * kVectors + v) * 64);
        prefetch_lines(panel + k * kPanel);
        add_byte<R, 0>(x + k, linear.inputs, lanes, sums);
        add_byte<R, 1>(x + k, linear.inputs, lanes, sums);
        add_byte<R, 2>(x + k, linear.inputs, lanes, sums);
        add_byte<R, 3>(x + k, linear.inputs, lanes, sums);
    }
    for (int v = 0; v < kVectors; ++v) {
        const __m512 scale = _mm512_loadu_ps(linear.scale + column + v * 16);
        for (auto &row : sums) row[v] = _mm512_mul_ps(row[v], scale);
    }
}

// One row to 8 bits: scale = largest magnitude / 127. A row of zeros, or one that is not finite, keeps scale 0 or NaN: it spoils itself only.
inline void quantise(const bf16 *row, int inputs, uint8_t *narrow, float *scale) {
    __m512 most = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 16) most = _mm512_max_ps(most, _mm512_abs_ps(load_bf16(row + k)));
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
    for (int k = 0; k < inputs; k += 16) {
        const __m512i value = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(row + k), inverse));
        const __m512i shifted = _mm512_add_epi32(value, _mm512_set1_epi32(128));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(narrow + k), _mm512_cvtepi32_epi8(shifted));
    }
    *scale = largest / 127.0f;
}

} // namespace pagoda
