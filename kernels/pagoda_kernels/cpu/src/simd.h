// Sixteen floats at a time: bf16 conversion, exponential, reductions. The same sources are compiled once for AVX-512 with bf16 and once for
// AVX2. A dot product of pairs of bf16 is one instruction of the former; the latter multiplies floats, two of them for each pair.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace pagoda {

using bf16 = uint16_t;

inline float from_bf16(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

} // namespace pagoda

#ifdef __AVX512BF16__
#include "wide_512.h"
#else
#include "wide_256.h"
#endif

namespace pagoda {

// e^x by 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2] (Taylor; relative error below 2e-7 there). -inf gives 0, NaN gives NaN.
inline Floats exponential(Floats x) {
    x = larger(all_of(-104.0f), x); // below it the result is 0 anyway; of a NaN the instruction returns the second
    const Floats n = nearest(mul(x, all_of(1.44269504f)));
    Floats f = fnmadd(n, all_of(0.693359375f), x); // ln 2 in two parts, the first exact in few bits (Cody and Waite)
    f = fnmadd(n, all_of(-2.12194440e-4f), f);
    Floats sum = all_of(1.0f / 720);
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = fmadd(sum, f, all_of(c));
    return times_power(sum, n);
}

// x / (1 + e^-x)
inline Floats silu(Floats x) { return div(x, add(all_of(1.0f), exponential(sub(zeros(), x)))); }

} // namespace pagoda
