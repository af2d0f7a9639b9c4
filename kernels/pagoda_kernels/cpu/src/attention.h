// Attention over paged keys and values, a block being 16 tokens.
//
// Keys of a block and head lie as [dim / 2][16 tokens][2], values as [16 / 2 token pairs][dim][2]: either product is one dot product
// per 64-byte line, scores of 16 tokens come out in one register, and nothing is ever gathered or added across lanes.
// Softmax runs online over chunks of 128 tokens counted from position 0, so a query's result does not depend on what is computed with it.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.h"

namespace pagoda {

constexpr int kBlock = 16;
constexpr int kChunkBlocks = 8;
constexpr int kChunk = kBlock * kChunkBlocks;
constexpr int kMaxDim = 256;

// Up to kQueries query vectors of one row and one key-value head.
struct Queries {
    const Factor *vector[kQueries]; // [dim] each
    Factor *out[kQueries];          // [dim] each
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

// Sixteen scores per query.
template <int Q> inline void block_scores(const Queries &queries, const bf16 *keys, int dim, Floats (&scores)[Q]) {
    Floats sums[Q][kScoreChains];
    for (auto &query : sums)
        for (auto &sum : query) sum = zeros();
    for (int d = 0; d < dim; d += 2 * kScoreChains) {
        Pairs pairs[kScoreChains];
        for (int c = 0; c < kScoreChains; ++c) pairs[c] = load_pairs(keys + (d + 2 * c) * kBlock);
        for (int q = 0; q < Q; ++q)
            for (int c = 0; c < kScoreChains; ++c) sums[q][c] = dot(sums[q][c], pairs[c], broadcast_pair(queries.vector[q] + d + 2 * c));
    }
    for (int q = 0; q < Q; ++q) {
        scores[q] = sums[q][0];
        for (int c = 1; c < kScoreChains; ++c) scores[q] = add(scores[q], sums[q][c]);
    }
}

// What a query may not see scores -inf, whatever the unwritten slot holds.
inline Floats visible(Floats scores, float scale, int first, int position, int window) {
    const Words places = add(all_of(first), lanes());
    Mask seen = at_most(places, all_of(position));
    if (window > 0) seen = both(seen, above(places, all_of(position - window)));
    return choose(seen, mul(scores, all_of(scale)), all_of(-std::numeric_limits<float>::infinity()));
}

struct Running {
    float most = -std::numeric_limits<float>::infinity();
    float total = 0;
};

// Scores of one chunk → weights (rounded to bf16) and the running maximum and sum; what was summed before is scaled by the return value.
inline float soften(Floats *scores, int blocks, Factor *weights, Running &running) {
    Floats most = scores[0];
    for (int b = 1; b < blocks; ++b) most = larger(most, scores[b]);
    const float before = running.most, now = std::max(largest_of(most), before); // of a NaN, the first

    if (now == -std::numeric_limits<float>::infinity()) { // nothing of the chunk is visible to this query
        std::memset(weights, 0, sizeof(Factor) * kBlock * blocks);
        return 1.0f;
    }
    Floats total = zeros();
    for (int b = 0; b < blocks; ++b) {
        const Floats weight = exponential(sub(scores[b], all_of(now)));
        store_factors(weights + b * kBlock, weight);
        total = add(total, load_factors(weights + b * kBlock)); // the rounded ones, so that they sum to one
    }
    const float kept = std::exp(before - now);
    running.most = now;
    running.total = running.total * kept + sum_of(total);
    return kept;
}

// out += weights * values for sixteen dimensions. `known` tokens of the block are written: a slot beyond holds anything, even NaN,
// and 0 * NaN is NaN.
template <int Q> inline void add_block(const bf16 *values, int dim, const Factor (&weights)[Q][kChunk], int offset, int known, Floats (&sums)[Q]) {
    for (int t = 0; t < known; t += 2) {
        Pairs pair = load_pairs(values + static_cast<int64_t>(t) * dim);
        if (t + 1 == known) pair = only_first(pair);
        for (int q = 0; q < Q; ++q) sums[q] = dot(sums[q], pair, broadcast_pair(weights[q] + offset + t));
    }
}

template <int Q> inline void attend_chunk(const Queries &queries, const Pages &pages, int chunk, float (&mixed)[Q][kMaxDim], Running (&running)[Q]) {
    const int first = chunk * kChunkBlocks, last = std::min(first + kChunkBlocks, queries.newest / kBlock + 1);
    const int skipped = std::max(first, queries.oldest / kBlock); // blocks behind every window may have been given away
    Floats scores[Q][kChunkBlocks];
    for (int block = first; block < last; ++block) {
        Floats raw[Q];
        if (block >= skipped) block_scores<Q>(queries, pages.keys_of(block), pages.dim, raw);
        else for (auto &score : raw) score = zeros();
        for (int q = 0; q < Q; ++q) scores[q][block - first] = visible(raw[q], pages.scale, block * kBlock, queries.position[q], pages.window);
    }
    Factor weights[Q][kChunk];
    for (int q = 0; q < Q; ++q) {
        const float kept = soften(scores[q], last - first, weights[q], running[q]);
        if (kept != 1.0f)
            for (int d = 0; d < pages.dim; d += 16) store(mixed[q] + d, mul(load(mixed[q] + d), all_of(kept)));
    }
    for (int d = 0; d < pages.dim; d += 16) {
        Floats sums[Q];
        for (int q = 0; q < Q; ++q) sums[q] = load(mixed[q] + d);
        for (int block = skipped; block < last; ++block)
            add_block<Q>(pages.values_of(block) + d * 2, pages.dim, weights, (block - first) * kBlock, std::min(kBlock, queries.newest + 1 - block * kBlock), sums);
        for (int q = 0; q < Q; ++q) store(mixed[q] + d, sums[q]);
    }
}

template <int Q> inline void attend(const Queries &queries, const Pages &pages) {
    float mixed[Q][kMaxDim];
    Running running[Q];
    std::memset(mixed, 0, sizeof mixed);
    for (int chunk = queries.oldest / kChunk; chunk <= queries.newest / kChunk; ++chunk) attend_chunk<Q>(queries, pages, chunk, mixed, running);
    for (int q = 0; q < Q; ++q) {
        const Floats share = all_of(1.0f / running[q].total);
        for (int d = 0; d < pages.dim; d += 16) store_factors(queries.out[q] + d, mul(load(mixed[q] + d), share));
    }
}

inline void attend(const Queries &queries, const Pages &pages) {
    if constexpr (kQueries > 4) {
        if (queries.count == 8) return attend<8>(queries, pages);
        if (queries.count == 7) return attend<7>(queries, pages);
        if (queries.count == 6) return attend<6>(queries, pages);
        if (queries.count == 5) return attend<5>(queries, pages);
    }
    if (queries.count == 4) return attend<4>(queries, pages);
    if (queries.count == 3) return attend<3>(queries, pages);
    if (queries.count == 2) return attend<2>(queries, pages);
    attend<1>(queries, pages);
}

} // namespace pagoda
