// Sixteen floats at a time with AVX-512. simd.h says what each name means; wide_256.h has the same names.
#pragma once

#include <limits>

#include <immintrin.h>

namespace pagoda {

// What meets a matrix: the machine multiplies pairs of bf16.
using Factor = bf16;
using Floats = __m512;
using Words = __m512i;
using Mask = __mmask16;
using Pairs = __m512bh;
using Pair = __m512bh;

constexpr int kTile = 6;        // rows that share each line of weights: 6 x 4 vectors of sums + 4 of weights are 28 of 32 registers
constexpr int kQueries = 8;     // queries that share each line of keys and values
constexpr int kScoreChains = 2; // sums per query, over even and odd pairs of dimensions: they halve the wait for the instruction before
constexpr int kChains = 4;      // of a row's low ranks, of every fourth pair: one alone would wait 6 cycles for each instruction

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats all_of(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float *from) { return _mm512_loadu_ps(from); }
inline void store(float *to, Floats value) { _mm512_storeu_ps(to, value); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats size_of(Floats value) { return _mm512_abs_ps(value); }
inline Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats nearest(Floats value) { return _mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_power(Floats value, Floats n) { return _mm512_scalef_ps(value, n); }
inline float sum_of(Floats value) { return _mm512_reduce_add_ps(value); }
inline float largest_of(Floats value) { return _mm512_reduce_max_ps(value); }

inline Words lanes() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
inline Words all_of(int32_t value) { return _mm512_set1_epi32(value); }
inline Words load_words(const void *from) { return _mm512_loadu_si512(from); }
inline void store(int32_t *to, Words value) { _mm512_storeu_si512(to, value); }
inline Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_of(Words value) { return _mm512_reduce_add_epi32(value); }
inline Words to_words(Floats value) { return _mm512_cvtps_epi32(value); }
inline void store_bytes(int8_t *to, Words value) { _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_cvtepi32_epi8(value)); }

inline Mask at_most(Words a, Words b) { return _mm512_cmple_epi32_mask(a, b); }
inline Mask above(Words a, Words b) { return _mm512_cmpgt_epi32_mask(a, b); }
inline Mask above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask unordered(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
inline Mask both(Mask a, Mask b) { return a & b; }
inline Mask either(Mask a, Mask b) { return a | b; }
inline Mask none() { return 0; }
inline bool any(Mask mask) { return mask != 0; }
inline Floats choose(Mask mask, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline Words choose(Mask mask, Words yes, Words no) { return _mm512_mask_mov_epi32(no, mask, yes); }

inline Floats load_bf16(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))), 16));
}

inline void store_bf16(bf16 *to, Floats value) {
    const __m256bh narrow = _mm512_cvtneps_pbh(value); // rounds to nearest even
    std::memcpy(to, &narrow, sizeof narrow);
}

inline bf16 to_bf16(float value) {
    const __m128bh narrow = _mm_cvtneps_pbh(_mm_set_ss(value));
    bf16 low;
    std::memcpy(&low, &narrow, sizeof low);
    return low;
}

inline Floats load_factors(const Factor *from) { return load_bf16(from); }
inline void store_factors(Factor *to, Floats value) { store_bf16(to, value); }
inline float to_float(Factor factor) { return from_bf16(factor); }

inline Pairs load_pairs(const bf16 *from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }
inline Pairs only_first(Pairs pairs) { return reinterpret_cast<__m512bh>(_mm512_maskz_mov_epi16(0x55555555u, reinterpret_cast<__m512i>(pairs))); }
inline Pair broadcast_pair(const Factor *from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}
inline Floats dot(Floats sum, Pairs weights, Pair factors) { return _mm512_dpbf16_ps(sum, weights, factors); }

} // namespace pagoda
