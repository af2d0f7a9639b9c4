// Sixteen floats at a time with AVX2 and FMA, in two halves. simd.h says what each name means; wide_512.h has the same names.
#pragma once

#include <limits>

#include <immintrin.h>

namespace pagoda {

// What meets a matrix: this machine multiplies floats only. Each is rounded to bf16, so that it is the number that wide_512.h has.
using Factor = float;
struct Floats {
    __m256 low, high;
};
struct Words {
    __m256i low, high;
};
struct Mask {
    __m256 low, high;
};
using Pairs = Words; // as they lie in memory
struct Pair {
    __m256 first, second;
};

// There are 16 registers where AVX-512 has 32 that are twice as wide.
constexpr int kTile = 4;        // rows that share each line of weights: panel_256.h
constexpr int kQueries = 4;     // queries that share each line of keys and values
constexpr int kScoreChains = 1; // sums per query
constexpr int kChains = 1;      // of a row's low ranks

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats all_of(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats load(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float *to, Floats value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
}
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats size_of(Floats value) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, value.low), _mm256_andnot_ps(sign, value.high)};
}
inline Floats fmadd(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)}; }
inline Floats nearest(Floats value) {
    constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(value.low, how), _mm256_round_ps(value.high, how)};
}

// Twice a half of the power: 2^-150 and 2^128 are no floats. From 2^150 on all is infinite: where `exponential` is given 10^8, its polynomial
// is far below 1.
inline __m256 times_power(__m256 value, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(150.0f), n)), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    const auto power = [&](__m256i exponent) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, bias), 23)); };
    return _mm256_mul_ps(_mm256_mul_ps(value, power(half)), power(_mm256_sub_epi32(whole, half)));
}
inline Floats times_power(Floats value, Floats n) { return {times_power(value.low, n.low), times_power(value.high, n.high)}; }

inline float sum_of(Floats value) {
    const __m256 eight = _mm256_add_ps(value.low, value.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest_of(Floats value) {
    const __m256 eight = _mm256_max_ps(value.low, value.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)), two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline Words lanes() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }
inline Words all_of(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline Words load_words(const void *from) {
    const __m256i *halves = static_cast<const __m256i *>(from);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store(int32_t *to, Words value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), value.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + 8), value.high);
}
inline Words add(Words a, Words b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline int32_t sum_of(Words value) {
    alignas(32) uint32_t each[8], sum = 0; // it may wrap
    _mm256_store_si256(reinterpret_cast<__m256i *>(each), _mm256_add_epi32(value.low, value.high));
    for (const uint32_t one : each) sum += one;
    return static_cast<int32_t>(sum);
}
inline Words to_words(Floats value) { return {_mm256_cvtps_epi32(value.low), _mm256_cvtps_epi32(value.high)}; }
inline void store_bytes(int8_t *to, Words value) {
    const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(value.low, value.high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1)));
}

inline Mask above(Words a, Words b) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.low, b.low)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.high, b.high))};
}
inline Mask above(Floats a, Floats b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ)}; }
inline Mask unordered(Floats a, Floats b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, b.high, _CMP_UNORD_Q)}; }
inline Mask both(Mask a, Mask b) { return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)}; }
inline Mask either(Mask a, Mask b) { return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)}; }
inline Mask none() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Mask at_most(Words a, Words b) {
    const Mask over = above(a, b);
    const __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_xor_ps(over.low, all), _mm256_xor_ps(over.high, all)};
}
inline bool any(Mask mask) { return _mm256_movemask_ps(_mm256_or_ps(mask.low, mask.high)) != 0; }
inline Floats choose(Mask mask, Floats yes, Floats no) { return {_mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high)}; }
inline Words choose(Mask mask, Words yes, Words no) {
    return {_mm256_blendv_epi8(no.low, yes.low, _mm256_castps_si256(mask.low)), _mm256_blendv_epi8(no.high, yes.high, _mm256_castps_si256(mask.high))};
}

inline __m256 half_of_bf16(const bf16 *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))), 16));
}
inline Floats load_bf16(const bf16 *from) { return {half_of_bf16(from), half_of_bf16(from + 8)}; }

// The bits of the nearest bf16, of two the even one; a NaN keeps its upper half and is quiet.
inline __m256i rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value), even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even), quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 upper = _mm256_blendv_ps(_mm256_castsi256_ps(near), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_castps_si256(upper), _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u)));
}

inline void store_bf16(bf16 *to, Floats value) {
    const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded(value.low), 16), _mm256_srli_epi32(rounded(value.high), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}

inline bf16 to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<bf16>((value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline Floats load_factors(const Factor *from) { return load(from); }
inline void store_factors(Factor *to, Floats value) { store(to, Floats{_mm256_castsi256_ps(rounded(value.low)), _mm256_castsi256_ps(rounded(value.high))}); }
inline float to_float(Factor factor) { return factor; }

inline __m256 first_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 second_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u)))); }
inline Pairs load_pairs(const bf16 *from) { return load_words(from); }
inline Pairs only_first(Pairs pairs) {
    const __m256i first = _mm256_set1_epi32(0xffff);
    return {_mm256_and_si256(pairs.low, first), _mm256_and_si256(pairs.high, first)};
}
inline Pair broadcast_pair(const Factor *from) { return {_mm256_broadcast_ss(from), _mm256_broadcast_ss(from + 1)}; }
inline Floats dot(Floats sum, Pairs weights, Pair factors) {
    return {_mm256_fmadd_ps(second_of(weights.low), factors.second, _mm256_fmadd_ps(first_of(weights.low), factors.first, sum.low)),
            _mm256_fmadd_ps(second_of(weights.high), factors.second, _mm256_fmadd_ps(first_of(weights.high), factors.first, sum.high))};
}

} // namespace pagoda
