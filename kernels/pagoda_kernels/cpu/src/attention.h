// Attention over paged keys and values, a block being 16 tokens.
//
// Keys of a block and head lie as [dim / 2][16 tokens][2], values as [16 / 2 token pairs][dim][2]: either product is one dot-product
// instruction per 64-byte line, scores of 16 tokens come out in one register, and nothing is ever gathered or added across lanes.
// Softmax runs online over chunks of 128 tokens counted from position 0, so a query's result does not depend on what is computed with it.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.h"

namespace pagoda {

constexpr int kBlock = 16;
constexpr int kChunkBlocks = 8;
constexpr int kChunk = kBlock * kChunkBlocks;
constexpr int kQueries = 8; // queries that share each line of keys and values
constexpr int kMaxDim = 256;

// Up to kQueries query vectors of one row and one key-value head.
struct Queries {
    const bf16 *vector[kQueries]; // [dim] each
    bf16 *out[kQueries];          // [dim] each
    int position[kQueries];
    int count;
    int oldest; // the first position that any of them sees
    int newest; // the last one
};

// Where one layer's blocks of one key-value head are.
struct Pages {
    const bf16 *keys; // block b at b * block_stride
    const bf16 *values;
    const int32_t *table; // [blocks of the row]
    int64_t block_stride;
    int dim;
    int window; // a query sees positions > its own - window; 0: all
    float scale;

    const bf16 *keys_of(int block) const { return keys + table[block] * block_stride; }
    const bf16 *values_of(int block) const { return values + table[block] * block_stride; }
};

// Sixteen scores per query. Two sums per query, over even and odd pairs of dimensions, halve the wait for the instruction before.
template <int Q> inline void block_scores(const Queries &queries, const bf16 *keys, int dim, __m512 (&scores)[Q]) {
    __m512 even[Q], odd[Q];
    for (int q = 0; q < Q; ++q) even[q] = odd[q] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 4) {
        const __m512bh first = load_pairs(keys + d * kBlock), second = load_pairs(keys + (d + 2) * kBlock);
        for (int q = 0; q < Q; ++q) {
            even[q] = _mm512_dpbf16_ps(even[q], first, broadcast_pair(queries.vector[q] + d));
            odd[q] = _mm512_dpbf16_ps(odd[q], second, broadcast_pair(queries.vector[q] + d + 2));
        }
    }
    for (int q = 0; q < Q; ++q) scores[q] = _mm512_add_ps(even[q], odd[q]);
}

// What a query may not see scores -inf, whatever the unwritten slot holds.
inline __m512 visible(__m512 scores, float scale, int first, int position, int window) {
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 seen = _mm512_cmple_epi32_mask(places, _mm512_set1_epi32(position));
    if (window > 0) seen &= _mm512_cmpgt_epi32_mask(places, _mm512_set1_epi32(position - window));
    return _mm512_mask_mul_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()), seen, scores, _mm512_set1_ps(scale));
}

struct Running {
    float most = -std::numeric_limits<float>::infinity();
    float total = 0;
};

// Scores of one chunk → weights (bf16) and the running maximum and sum; what was summed before is scaled by the return value.
inline float soften(__m512 *scores, int blocks, bf16 *weights, Running &running) {
    __m512 most = scores[0];
    for (int b = 1; b < blocks; ++b) most = _mm512_max_ps(most, scores[b]);
    const float before = running.most, now = std::max(before, _mm512_reduce_max_ps(most));
    if (now == -std::numeric_limits<float>::infinity()) { // nothing of the chunk is visible to this query
        std::memset(weights, 0, sizeof(bf16) * kBlock * blocks);
        return 1.0f;
    }
    __m512 total = _mm512_setzero_ps();
    for (int b = 0; b < blocks; ++b) {
        const __m512 weight = exponential(_mm512_sub_ps(scores[b], _mm512_set1_ps(now)));
        store_bf16(weights + b * kBlock, weight);
        total = _mm512_add_ps(total, load_bf16(weights + b * kBlock)); // the rounded ones, so that they sum to one
    }
    const float kept = std::exp(before - now);
    running.most = now;
    running.total = running.total * kept + _mm512_reduce_add_ps(total);
    return kept;
}

// out += weights * values for sixteen dimensions. `known` tokens of the block are written: a slot beyond holds anything, even NaN,
// and 0 * NaN is NaN.
template <int Q> inline void add_block(const bf16 *values, int dim, const bf16 (&weights)[Q][kChunk], int offset, int known, __m512 (&sums)[Q]) {
    for (int t = 0; t < known; t += 2) {
        __m512bh pair = load_pairs(values + static_cast<int64_t>(t) * dim);
        if (t + 1 == known) pair = reinterpret_cast<__m512bh>(_mm512_maskz_mov_epi16(0x55555555u, reinterpret_cast<__m512i>(pair)));
        for (int q = 0; q < Q; ++q) sums[q] = _mm512_dpbf16_ps(sums[q], pair, broadcast_pair(weights[q] + offset + t));
    }
}

template <int Q> inline void attend_chunk(const Queries &queries, const Pages &pages, int chunk, float (&mixed)[Q][kMaxDim], Running (&running)[Q]) {
    const int first = chunk * kChunkBlocks, last = std::min(first + kChunkBlocks, queries.newest / kBlock + 1);
    const int skipped = std::max(first, queries.oldest / kBlock); // blocks behind every window may have been given away
    __m512 scores[Q][kChunkBlocks];
    for (int block = first; block < last; ++block) {
        __m512 raw[Q];
        if (block >= skipped) block_scores<Q>(queries, pages.keys_of(block), pages.dim, raw);
        else for (auto &score : raw) score = _mm512_setzero_ps();
        for (int q = 0; q < Q; ++q) scores[q][block - first] = visible(raw[q], pages.scale, block * kBlock, queries.position[q], pages.window);
    }
    bf16 weights[Q][kChunk];
    for (int q = 0; q < Q; ++q) {
        const float kept = soften(scores[q], last - first, weights[q], running[q]);
        if (kept != 1.0f)
            for (int d = 0; d < pages.dim; d += 16) _mm512_storeu_ps(mixed[q] + d, _mm512_mul_ps(_mm512_loadu_ps(mixed[q] + d), _mm512_set1_ps(kept)));
    }
    for (int d = 0; d < pages.dim; d += 16) {
        __m512 sums[Q];
        for (int q = 0; q < Q; ++q) sums[q] = _mm512_loadu_ps(mixed[q] + d);
        for (int block = skipped; block < last; ++block)
            add_block<Q>(pages.values_of(block) + d * 2, pages.dim, weights, (block - first) * kBlock, std::min(kBlock, queries.newest + 1 - block * kBlock), sums);
        for (int q = 0; q < Q; ++q) _mm512_storeu_ps(mixed[q] + d, sums[q]);
    }
}

template <int Q> inline void attend(const Queries &queries, const Pages &pages) {
    float mixed[Q][kMaxDim];
    Running running[Q];
    std::memset(mixed, 0, sizeof mixed);
    for (int chunk = queries.oldest / kChunk; chunk <= queries.newest / kChunk; ++chunk) attend_chunk<Q>(queries, pages, chunk, mixed, running);
    for (int q = 0; q < Q; ++q) {
        const __m512 share = _mm512_set1_ps(1.0f / running[q].total);
        for (int d = 0; d < pages.dim; d += 16) store_bf16(queries.out[q] + d, _mm512_mul_ps(_mm512_loadu_ps(mixed[q] + d), share));
    }
}

inline void attend(const Queries &queries, const Pages &pages) {
    switch (queries.count) {
    case 1: return attend<1>(queries, pages);
    case 2: return attend<2>(queries, pages);
    case 3: return attend<3>(queries, pages);
    case 4: return attend<4>(queries, pages);
    case 5: return attend<5>(queries, pages);
    case 6: return attend<6>(queries, pages);
    case 7: return attend<7>(queries, pages);
    default: return attend<8>(queries, pages);
    }
}

} // namespace pagoda
