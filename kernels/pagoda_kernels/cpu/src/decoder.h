// A decoder's shape, weights, pages and scratch, as the caller describes them (cpu/native.py has the same structs). Borrowed pointers
// throughout: the caller keeps every array alive as long as the decoder.
#pragma once

#include <memory>
#include <vector>

#include "experts.h"
#include "linear_int8.h"
#include "low_rank.h"
#include "rows.h"
#include "team.h"

extern "C" {

// Where a step's time goes; native.py has the names in this order.
enum PagodaStage { kEmbed, kNorm, kQkv, kPlace, kAttend, kOutput, kGateUp, kDown, kHead, kQuantise, kShrink, kRoute, kMix, kStages };

struct PagodaLayer {
    pagoda::Linear qkv, output;
    const pagoda::Linear *gate_up, *down;      // of each expert, or of a dense layer the one; gate_up: panels of 32 gate and 32 up outputs
    pagoda::Linear router;                     // bf16, [experts]
    const float *attention_norm, *mlp_norm;    // [hidden]
    const float *query_norm, *key_norm;        // [head_dim] or null
    int32_t window;                            // 0: none
    int32_t experts, per_token;                // 0: a dense layer
    int32_t normalised;                        // whether the shares of a token's experts sum to 1
};

struct PagodaShape {
    int32_t hidden, heads, kv_heads, head_dim, intermediate, vocab, layers, blocks, threads;
    int32_t positions; // rows of `cos` and `sin`
    int32_t wide_rows; // int8 weights meet bf16 activations up to this many rows, 8-bit ones above
    float eps;
    float attention_scale;
    const pagoda::bf16 *embedding; // [vocab, hidden], or null: tied to the head
    const float *norm;             // [hidden]
    const float *cos, *sin;        // [positions, head_dim / 2]
    pagoda::bf16 *pages;           // [layers, 2, blocks, kv_heads, 16 * head_dim]
    pagoda::Linear head;
};

struct PagodaStep {
    int32_t tokens;
    const int32_t *ids, *positions; // [tokens]
    const int32_t *rows;            // [tokens]: whose line of `tables` each uses; the tokens of a row stand together, in order
    const int32_t *tables;          // [rows, table_width]
    int32_t table_rows, table_width;
    const int32_t *adapters; // [table_rows] slots, 0 for none; or null: no row has one
    int32_t wanted_count;
    const int32_t *wanted; // ascending indexes of the tokens whose logits are wanted
    const int32_t *places; // which line of `logits` each of them fills
    float *logits;         // [wanted_count, vocab rounded up to 64]
    int32_t *likeliest;    // [wanted_count] or null: the first largest logit of each line, and its value, NaN where there is any
    float *best;
    float *states; // [wanted_count, hidden] or null: what the head reads, the last layer's output after the norm
};
}

namespace pagoda {

// Tokens that go through the layers together. Their activations stay in the caches: 256 rows of 2,048 are 1 MiB as bf16.
constexpr int kTogether = 256;

// What `pass` walks through: at most so many stages in a layer, and before and behind the layers.
constexpr int kStagesOfLayer = 16, kStagesAround = 4;

struct Tile { // queries of up to kQueries that attend together
    int32_t token, tokens, head, heads, kv_head;
};

struct Scratch {
    std::vector<float> hidden, fused;
    std::vector<Factor> x, queries, wide;
    std::vector<int8_t> narrow;
    std::vector<float> scale;
    std::vector<int32_t> shift;
    std::vector<Tile> tiles;
};

class Decoder {
  public:
    Decoder(const PagodaShape &shape, const PagodaLayer *layers);
    const char *step(const PagodaStep &step); // null, or why nothing was done
    const char *hold(int slot, const PagodaLowRank *modules); // [layers][kModules], null: forget them; null, or why not
    const char *copy_blocks(const int32_t *pairs, int count);
    const uint64_t *spent() const { return spent_; } // [kStages], time-stamp counts of thread 0 since the start

  private:
    struct Part { // what one pass through the layers computes
        const PagodaStep *step;
        int first, count;                // tokens
        int wanted_first, wanted_count;
    };
    struct Product { // rows that meet a matrix, of `layer` where adapters change it
        Fused fused;
        int layer;
        const Linear &linear;
        const Factor *x;
        int count;
    };
    class Stages;

    void pass(const Part &part);
    void tile(const Part &part);
    void attention(Stages &stages, const Part &part, const PagodaLayer &layer, int index);
    void attend_tile(const Part &part, const Tile &tile, int layer);
    void mlp(Stages &stages, const Part &part, const PagodaLayer &layer, int index);
    void mix(Stages &stages, const Part &part, const PagodaLayer &layer, int index);
    void route(Stages &stages, const Part &part, const PagodaLayer &layer, int index);
    void add_shares(int token, int each);
    void room_for_experts();
    void logits(Stages &stages, const Part &part);
    void place_token(const Part &part, const PagodaLayer &layer, int index, int token, int kv_head);
    void norm(Stages &stages, int count, const float *weight, const Linear &next);
    void narrow(Stages &stages, const Factor *rows, int count, const Linear &next);
    void narrow_row(const Factor *rows, int row, int inputs);
    bool is_narrow(const Linear &next, int count) const { return next.kind == Kind::kInt8 && count > shape_.wide_rows; }
    template <class Done> void multiply(Stages &stages, const Product &product, const Done &done);
    void add_residual(Stages &stages, const Product &product);

    int64_t block_elements() const { return static_cast<int64_t>(shape_.kv_heads) * kBlock * shape_.head_dim; }
    bf16 *pages(int layer, int part) const { return shape_.pages + (static_cast<int64_t>(layer) * 2 + part) * shape_.blocks * block_elements(); }

    const PagodaShape shape_;
    const std::vector<PagodaLayer> layers_;
    Team team_;
    Scratch scratch_;
    Mixture mixture_;
    Adapters adapters_;
    uint64_t spent_[kStages] = {};
};

} // namespace pagoda
