// Weights of 8 bits, packed [panel][k / 4][64][4] as value + 128, with a scale per output and group of 32 inputs, [panel][k / 32][64].
//
// Few rows: the weights become floats in registers and meet bf16 activations (weight-only). More rows: activations are rounded to 8
// bits too, by groups of 32 as well, and their products are summed as integers (W8A8; panel_512.h and panel_256.h). One scale per output and row instead of
// groups kept the logits of a random 160 M model within a cosine of 0.9967 of bf16's; 0.999 is asked for.
#pragma once

#include <limits>

#include "linear.h"

namespace pagoda {

// One row to 8 bits: per group of 32, scale = largest magnitude / 127, NaN where the group holds one or an infinity, so that it stays to be seen.
// `shift` is what the offset of the weights adds to a group's sum, negated.
inline void quantise(const Factor *row, int inputs, int8_t *narrow, float *scale, int32_t *shift) {
    for (int group = 0; group < inputs / kGroup; ++group) {
        const Floats low = load_factors(row + group * kGroup), high = load_factors(row + group * kGroup + 16);
        const bool odd = any(unordered(sub(low, low), sub(high, high))); // a NaN, or infinite
        const float largest = odd ? std::numeric_limits<float>::quiet_NaN() : largest_of(larger(size_of(low), size_of(high)));
        const Floats inverse = all_of(largest > 0 ? 127.0f / largest : 0.0f);
        const Words first = to_words(mul(low, inverse)), second = to_words(mul(high, inverse));
        store_bytes(narrow + group * kGroup, first);
        store_bytes(narrow + group * kGroup + 16, second);
        scale[group] = largest / 127.0f;
        shift[group] = odd ? 0 : -128 * sum_of(add(first, second));
    }
}

} // namespace pagoda
