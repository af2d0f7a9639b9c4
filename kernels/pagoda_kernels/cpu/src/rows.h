// What happens to one row between the matrices: norms, rotary embedding, writing keys and values, looking up.
#pragma once

#include "attention.h"
#include "linear_int8.h"

namespace pagoda {

inline float mean_square(const float *row, int size) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < size; i += 16) {
        const __m512 value = _mm512_loadu_ps(row + i);
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    return _mm512_reduce_add_ps(sum) / static_cast<float>(size);
}

// RMSNorm (Zhang and Sennrich, 2019): row / sqrt(mean square + eps) * weight, as bf16.
inline void norm_row(const float *row, const float *weight, int size, float eps, bf16 *out) {
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean_square(row, size) + eps));
    for (int i = 0; i < size; i += 16)
        store_bf16(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), scale), _mm512_loadu_ps(weight + i)));
}

// Scale a head in place; Qwen3 does so with queries and keys before they are turned.
inline void norm_head(float *head, const float *weight, int dim, float eps) {
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean_square(head, dim) + eps));
    for (int d = 0; d < dim; d += 16) _mm512_storeu_ps(head + d, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(head + d), scale), _mm512_loadu_ps(weight + d)));
}

// Rotary embedding (Su et al., 2021) on halves: (a, b) → (a cos - b sin, b cos + a sin), a being the first half of the head.
inline void turn_head(float *head, const float *cos, const float *sin, int dim) {
    const int half = dim / 2;
    for (int d = 0; d < half; ++d) {
        const float a = head[d], b = head[d + half];
        head[d] = a * cos[d] - b * sin[d];
        head[d + half] = b * cos[d] + a * sin[d];
    }
}

inline void narrow_head(const float *head, int dim, bf16 *out) {
    for (int d = 0; d < dim; d += 16) store_bf16(out + d, _mm512_loadu_ps(head + d));
}

// Into slot `offset` of a block; layouts in attention.h.
inline void write_key(const float *head, int dim, bf16 *block, int offset) {
    for (int d = 0; d < dim; d += 2) {
        block[d * kBlock + offset * 2] = to_bf16(head[d]);
        block[d * kBlock + offset * 2 + 1] = to_bf16(head[d + 1]);
    }
}

inline void write_value(const float *head, int dim, bf16 *block, int offset) {
    bf16 *pairs = block + (offset / 2) * dim * 2 + offset % 2;
    for (int d = 0; d < dim; ++d) pairs[d * 2] = to_bf16(head[d]);
}

// A row of the embedding, from its own table or from the packed head where the two are tied.
inline void embed_row(const bf16 *table, const Linear &head, int id, int hidden, float *out) {
    if (table != nullptr) {
        for (int i = 0; i < hidden; i += 16) _mm512_storeu_ps(out + i, load_bf16(table + static_cast<int64_t>(id) * hidden + i));
        return;
    }
    const int64_t panel = static_cast<int64_t>(id / kPanel) * kPanel * hidden;
    const int column = id % kPanel;
    if (head.kind == Kind::kBf16) {
        const bf16 *from = static_cast<const bf16 *>(head.weight) + panel;
        for (int k = 0; k < hidden; ++k) out[k] = to_float(from[(k / 2 * kPanel + column) * 2 + k % 2]);
    } else {
        const uint8_t *from = static_cast<const uint8_t *>(head.weight) + panel;
        const bf16 *scales = head.scale + panel / kGroup + column;
        for (int k = 0; k < hidden; ++k) out[k] = static_cast<float>(from[(k / 4 * kPanel + column) * 4 + k % 4] - 128) * to_float(scales[k / kGroup * kPanel]);
    }
}

struct Largest {
    int32_t index;
    float value;
};

// The first of the largest; a NaN anywhere is the value, and the index then means nothing.
inline Largest largest(const float *row, int size) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 value = least;
    __m512i index = lanes;
    __mmask16 nan = 0;
    for (int i = 0; i < size; i += 16) {
        const __m512 here = _mm512_mask_loadu_ps(least, size - i < 16 ? static_cast<__mmask16>((1u << (size - i)) - 1) : static_cast<__mmask16>(0xffff), row + i);
        nan |= _mm512_cmp_ps_mask(here, here, _CMP_UNORD_Q);
        const __mmask16 larger = _mm512_cmp_ps_mask(here, value, _CMP_GT_OQ);
        value = _mm512_mask_mov_ps(value, larger, here);
        index = _mm512_mask_mov_epi32(index, larger, _mm512_add_epi32(lanes, _mm512_set1_epi32(i)));
    }
    const float most = _mm512_reduce_max_ps(value);
    const __mmask16 there = _mm512_cmp_ps_mask(value, _mm512_set1_ps(most), _CMP_EQ_OQ);
    return {_mm512_mask_reduce_min_epi32(there, index), nan != 0 ? NAN : most};
}

} // namespace pagoda
