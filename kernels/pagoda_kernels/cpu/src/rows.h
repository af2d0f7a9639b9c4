// What happens to one row between the matrices: norms, rotary embedding, writing keys and values, looking up.
#pragma once

#include "attention.h"
#include "linear_int8.h"

namespace pagoda {

inline float mean_square(const float *row, int size) {
    Floats sum = zeros();
    for (int i = 0; i < size; i += 16) {
        const Floats value = load(row + i);
        sum = fmadd(value, value, sum);
    }
    return sum_of(sum) / static_cast<float>(size);
}

// RMSNorm (Zhang and Sennrich, 2019): row / sqrt(mean square + eps) * weight, rounded to bf16.
inline void norm_row(const float *row, const float *weight, int size, float eps, Factor *out) {
    const Floats scale = all_of(1.0f / std::sqrt(mean_square(row, size) + eps));
    for (int i = 0; i < size; i += 16)
        store_factors(out + i, mul(mul(load(row + i), scale), load(weight + i)));
}

// Scale a head in place; Qwen3 does so with queries and keys before they are turned.
inline void norm_head(float *head, const float *weight, int dim, float eps) {
    const Floats scale = all_of(1.0f / std::sqrt(mean_square(head, dim) + eps));
    for (int d = 0; d < dim; d += 16) store(head + d, mul(mul(load(head + d), scale), load(weight + d)));
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

inline void narrow_head(const float *head, int dim, Factor *out) {
    for (int d = 0; d < dim; d += 16) store_factors(out + d, load(head + d));
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
        for (int i = 0; i < hidden; i += 16) store(out + i, load_bf16(table + static_cast<int64_t>(id) * hidden + i));
        return;
    }
    const int64_t panel = static_cast<int64_t>(id / kPanel) * kPanel * hidden;
    const int column = id % kPanel;
    if (head.kind == Kind::kBf16) {
        const bf16 *from = static_cast<const bf16 *>(head.weight) + panel;
        for (int k = 0; k < hidden; ++k) out[k] = from_bf16(from[(k / 2 * kPanel + column) * 2 + k % 2]);
    } else {
        const uint8_t *from = static_cast<const uint8_t *>(head.weight) + panel;
        const bf16 *scales = head.scale + panel / kGroup + column;
        for (int k = 0; k < hidden; ++k) out[k] = static_cast<float>(from[(k / 4 * kPanel + column) * 4 + k % 4] - 128) * from_bf16(scales[k / kGroup * kPanel]);
    }
}

struct Largest {
    int32_t index;
    float value;
};

// The first of the largest; a NaN anywhere is the value, and the index then means nothing.
inline Largest largest(const float *row, int size) {
    Floats most = all_of(-INFINITY);
    Words index = lanes();
    Mask nan = none();
    const auto look = [&](const float *from, int at) __attribute__((always_inline)) {
        const Floats here = load(from);
        const Mask more = above(here, most);
        nan = either(nan, unordered(here, here));
        most = choose(more, here, most);
        index = choose(more, add(lanes(), all_of(at)), index);
    };
    const int whole = size / 16 * 16;
    for (int i = 0; i < whole; i += 16) look(row + i, i);
    if (whole < size) {
        float rest[16];
        std::fill(rest, rest + 16, -INFINITY);
        std::copy(row + whole, row + size, rest);
        look(rest, whole);
    }
    float values[16];
    int32_t places[16];
    store(values, most);
    store(places, index);
    Largest found{places[0], values[0]};
    for (int i = 1; i < 16; ++i)
        if (values[i] > found.value || (values[i] == found.value && places[i] < found.index)) found = {places[i], values[i]};
    return {found.index, any(nan) ? NAN : found.value};
}

} // namespace pagoda
