// Sixteen floats at a time: bf16 conversion, exponential, reductions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include <immintrin.h>

namespace pagoda {

using bf16 = uint16_t;

inline float to_float(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline __m512 load_bf16(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))), 16));
}

inline void store_bf16(bf16 *to, __m512 value) {
    const __m256bh narrow = _mm512_cvtneps_pbh(value); // rounds to nearest even
    std::memcpy(to, &narrow, sizeof narrow);
}

inline bf16 to_bf16(float value) {
    const __m128bh narrow = _mm_cvtneps_pbh(_mm_set_ss(value));
    bf16 low;
    std::memcpy(&low, &narrow, sizeof low);
    return low;
}

// Two neighbouring bf16 in every lane.
inline __m512bh broadcast_pair(const bf16 *from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

inline __m512bh load_pairs(const bf16 *from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }

// e^x by 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2] (Taylor; relative error below 2e-7 there). -inf gives 0, NaN gives NaN.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x); // below it the result is 0 anyway; of a NaN the instruction returns the second
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x); // ln 2 in two parts, the first exact in few bits (Cody and Waite)
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(c));
    return _mm512_scalef_ps(sum, n);
}

// x / (1 + e^-x)
inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(x, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

} // namespace pagoda
