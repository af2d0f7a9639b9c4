// Rows of x times one panel of a matrix, and what is done with the sums: the inner part of every stage that multiplies.
#pragma once

#include "linear_int8.h"
#include "low_rank.h"

namespace pagoda {

template <int R> inline void panel_sums(const Linear &linear, const Rows &x, int first, int panel, bool narrow, Sums<R> &sums) {
    const int64_t start = static_cast<int64_t>(panel) * kPanel * linear.inputs;
    const Factor *wide = x.wide + static_cast<int64_t>(first) * linear.inputs;
    if (linear.kind == Kind::kBf16) return panel_bf16<R>(wide, static_cast<const bf16 *>(linear.weight) + start, linear.inputs, *x.ahead, sums);
    const uint8_t *weights = static_cast<const uint8_t *>(linear.weight) + start;
    const bf16 *scales = linear.scale + start / kGroup;
    if (narrow) panel_w8a8<R>(x, first, weights, scales, linear.inputs, sums);
    else panel_w8a16<R>(wide, weights, scales, linear.inputs, sums);
}

template <int R, class Done> inline void tile_rows(const Linear &linear, const Rows &x, int first, int panel, bool narrow, const Done &done) {
    Sums<R> sums;
    done.before(first, R);
    panel_sums<R>(linear, x, first, panel, narrow, sums);
    for (int r = 0; r < R; ++r) {
        if (linear.bias != nullptr)
            for (int v = 0; v < kVectors; ++v) sums[r][v] = add(sums[r][v], load(linear.bias + panel * kPanel + v * 16));
        done(first + r, panel, sums[r]);
    }
}

template <class Done> inline void panel_rows(const Linear &linear, const Rows &x, int panel, bool narrow, const Done &done) {
    int first = 0;
    for (; x.count - first >= kTile; first += kTile) tile_rows<kTile>(linear, x, first, panel, narrow, done);
    const int rest = x.count - first;
    if constexpr (kTile > 4) {
        if (rest == 5) return tile_rows<5>(linear, x, first, panel, narrow, done);
        if (rest == 4) return tile_rows<4>(linear, x, first, panel, narrow, done);
    }
    if (rest == 3) return tile_rows<3>(linear, x, first, panel, narrow, done);
    if (rest == 2) return tile_rows<2>(linear, x, first, panel, narrow, done);
    if (rest == 1) return tile_rows<1>(linear, x, first, panel, narrow, done);
}

// Both factors of 32 activations, from a panel of gate and up.
inline void store_gated(const Floats (&sums)[kVectors], Factor *to) {
    store_factors(to, mul(silu(sums[0]), sums[2]));
    store_factors(to + 16, mul(silu(sums[1]), sums[3]));
}

// What is done with a panel's sums of a row.
template <class Done> struct Plain {
    const Done &done;
    void before(int, int) const {}
    void operator()(int row, int panel, Floats (&sums)[kVectors]) const { done(row, panel, sums); }
};

// `count` rows over one panel, without adapters; int8 weights meet them as they are.
template <class Done> inline void all_rows(const Linear &linear, const Factor *x, int count, int panel, const Done &done) {
    Ahead ahead;
    panel_rows(linear, Rows{x, nullptr, nullptr, nullptr, count, &ahead}, panel, false, Plain<Done>{done});
}

// The same with what adapters add, which is asked for while the sums run.
template <class Done> struct Adapted {
    const Done &done;
    const Adapters &adapters;
    int layer;
    const Spots &spots;
    Ahead &ahead;
    int inputs;
    void before(int first, int count) const {
        ahead.clear();
        adapters.ask(layer, spots, first, count, ahead);
        ahead.end_with(inputs / 2); // bf16 asks once for every pair of inputs; int8, of two halves of the rows, for every four
    }
    void operator()(int row, int panel, Floats (&sums)[kVectors]) const {
        adapters.add(layer, spots, row, sums);
        done(row, panel, sums);
    }
};

} // namespace pagoda
