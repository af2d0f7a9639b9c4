// What LoRA adapters (Hu et al., 2021) add to the fused matrices of a layer: y += B (A x), for those rows of a step that have one.
//
// Every module of a fused matrix has its own A and B, its rank rounded up to 16. A is packed [rank / 16][k / 2][16][2], B with the scale in
// it [outputs / 16][rank / 2][16][2]: each is one contiguous stream, and no zeros stand where modules are fused. A x is computed once for
// each row and rounded to bf16, as between any two matrices; B is added to a panel's sums while these are in registers. Both run in one
// order whatever else is in the batch, so that an answer stays the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.h"

extern "C" {

enum PagodaModule { kQueryModule, kKeyModule, kValueModule, kOutputModule, kGateModule, kUpModule, kDownModule, kModules };

struct PagodaLowRank {
    const pagoda::bf16 *shrink, *expand;
    int32_t rank; // a multiple of 16; 0: the module is not changed
    int32_t before; // ranks of the modules that are fused before it
};
}

namespace pagoda {

constexpr int kRanks = 16;
constexpr int kRowsOfChunk = 24; // rows of an adapter that one thread takes

enum class Fused { kQkv, kOutput, kGateUp, kDown, kHead };
constexpr int kAdaptable = 4; // the head is not

// R rows of x times 16 ranks of A, rounded to bf16.
template <int R> inline void shrink_rows(const Factor *const *x, const bf16 *ranks, int inputs, Factor *const *low) {
    Floats sums[R][kChains];
    for (auto &row : sums)
        for (auto &sum : row) sum = zeros();
    for (int k = 0; k < inputs; k += 2 * kChains) {
        Pairs weights[kChains];
        for (int c = 0; c < kChains; ++c) weights[c] = load_pairs(ranks + (k + 2 * c) * kRanks);
        prefetch_lines(ranks + k * kRanks);
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < kChains; ++c) sums[r][c] = dot(sums[r][c], weights[c], broadcast_pair(x[r] + k + 2 * c));
    }
    for (int r = 0; r < R; ++r) {
        for (int step = 1; step < kChains; step *= 2)
            for (int c = 0; c + step < kChains; c += 2 * step) sums[r][c] = add(sums[r][c], sums[r][c + step]);
        store_factors(low[r], sums[r][0]);
    }
}

inline void shrink_rows(int count, const Factor *const *x, const bf16 *ranks, int inputs, Factor *const *low) {
    if constexpr (kTile > 4) {
        if (count == 6) return shrink_rows<6>(x, ranks, inputs, low);
        if (count == 5) return shrink_rows<5>(x, ranks, inputs, low);
    }
    if (count == 4) return shrink_rows<4>(x, ranks, inputs, low);
    if (count == 3) return shrink_rows<3>(x, ranks, inputs, low);
    if (count == 2) return shrink_rows<2>(x, ranks, inputs, low);
    shrink_rows<1>(x, ranks, inputs, low);
}

// V neighbouring vectors of a module's outputs, B times `rank` ranks, onto `sums`; side by side, because each one's sums wait for each other.
template <int V> inline void expand(const bf16 *outputs, const Factor *low, int rank, Floats *sums) {
    for (int r = 0; r < rank; r += 2) {
        const Pair pair = broadcast_pair(low + r);
        for (int v = 0; v < V; ++v) sums[v] = dot(sums[v], load_pairs(outputs + (v * rank + r) * kRanks), pair);
    }
}

// Which vector of 16 outputs of which module each vector of a panel is; `count`: without those behind the last output.
struct Spots {
    int count = 0;
    int together = 1; // so many vectors are of one module, and neighbours there: 4, 2 or 1
    int module[kVectors], number[kVectors];
};

// The widths of what is fused, in vectors of 16 outputs, and the inputs of each fused matrix.
struct Widths {
    int query, key, hidden;
    int inputs[kAdaptable];
};

// The adapters of a decoder by slot, and which of a pass's rows have which. Changed between two steps only.
class Adapters {
  public:
    Adapters(const Widths &widths, int layers, int together) : widths_(widths), layers_(layers), together_(together), of_(together, nullptr), fresh_(together, false) {
        order_.reserve(together);
        chunks_.reserve(together);
    }

    // `modules` [layers][kModules], null to forget them. Everything that a step needs is allocated here.
    void hold(int slot, const PagodaLowRank *modules) {
        if (slot >= static_cast<int>(held_.size())) held_.resize(slot + 1);
        Held found{modules, {}};
        for (int layer = 0; modules != nullptr && layer < layers_; ++layer)
            for (int part = 0; part < kAdaptable; ++part) found.ranks[part] = std::max(found.ranks[part], ranks_of(modules + layer * kModules, part));
        width_ = std::max(width_, *std::max_element(found.ranks, found.ranks + kAdaptable));
        low_.resize(static_cast<size_t>(together_) * width_);
        held_[slot] = found;
    }

    bool holds(int slot) const { return slot == 0 || (slot > 0 && slot < static_cast<int>(held_.size()) && held_[slot].modules != nullptr); }

    // Sorts a pass's tokens by adapter; `slots` by row of the tables, null where no row has one.
    void choose(const int32_t *slots, const int32_t *rows, int count) {
        order_.clear();
        chunks_.clear();
        std::fill(ranks_, ranks_ + kAdaptable, 0);
        if (slots == nullptr) return;
        for (int token = 0; token < count; ++token) {
            const int slot = slots[rows[token]];
            of_[token] = slot == 0 ? nullptr : &held_[slot];
            fresh_[token] = false;
            if (slot != 0) order_.push_back({slot, token});
        }
        std::sort(order_.begin(), order_.end());
        for (int begin = 0, end; begin < static_cast<int>(order_.size()); begin = end) {
            const int slot = order_[begin].first, most = std::min(begin + kRowsOfChunk, static_cast<int>(order_.size()));
            for (end = begin; end < most && order_[end].first == slot; ++end) {}
            chunks_.push_back({&held_[slot], begin, end});
            fresh_[order_[begin].second] = true;
            for (int part = 0; part < kAdaptable; ++part) ranks_[part] = std::max(ranks_[part], held_[slot].ranks[part]);
        }
    }

    // How many items `shrink` has.
    int items(Fused fused) const { return fused == Fused::kHead ? 0 : static_cast<int>(chunks_.size()) * groups(fused); }

    // Sixteen ranks of one chunk's rows; `x` are the rows that meet the fused matrix.
    void shrink(Fused fused, int layer, int item, const Factor *x) {
        const Chunk &chunk = chunks_[item / groups(fused)];
        const PagodaLowRank *modules = chunk.held->modules + layer * kModules;
        int group = item % groups(fused);
        const int at = group * kRanks, last = kFirst[static_cast<int>(fused) + 1], inputs = widths_.inputs[static_cast<int>(fused)];
        int module = kFirst[static_cast<int>(fused)];
        for (; module < last && group >= modules[module].rank / kRanks; ++module) group -= modules[module].rank / kRanks;
        if (module == last) return; // another adapter has more ranks
        const bf16 *ranks = modules[module].shrink + static_cast<int64_t>(group) * kRanks * inputs;
        for (int first = chunk.begin, count; first < chunk.end; first += count) {
            count = std::min(kTile, chunk.end - first);
            const Factor *from[kTile];
            Factor *to[kTile];
            for (int r = 0; r < count; ++r) {
                const int64_t token = order_[first + r].second;
                from[r] = x + token * inputs;
                to[r] = &low_[token * width_ + at];
            }
            shrink_rows(count, from, ranks, inputs, to);
        }
    }

    Spots spots(Fused fused, int panel) const {
        Spots found;
        for (; found.count < kVectors; ++found.count) {
            const int v = found.count, number = panel * kVectors + v;
            if (fused == Fused::kGateUp) {
                found.module[v] = v < kVectors / 2 ? kGateModule : kUpModule;
                found.number[v] = panel * (kVectors / 2) + v % (kVectors / 2);
                continue;
            }
            int before = 0;
            const int last = kFirst[static_cast<int>(fused) + 1];
            int module = kFirst[static_cast<int>(fused)];
            while (module < last && number >= before + vectors(module)) before += vectors(module++);
            if (module == last) break;
            found.module[v] = module;
            found.number[v] = number - before;
        }
        if (found.count == kVectors) found.together = fused == Fused::kGateUp ? 2 : found.module[0] == found.module[kVectors - 1] ? kVectors : 1;
        return found;
    }

    // What `add` will read for these rows; not of an adapter that an earlier row has.
    void ask(int layer, const Spots &spots, int first, int count, Ahead &ahead) const {
        for (int row = first; row < first + count; ++row) {
            if (!fresh_[row]) continue;
            const PagodaLowRank *modules = of_[row]->modules + layer * kModules;
            for (int v = 0; v < spots.count; ++v) {
                const PagodaLowRank &module = modules[spots.module[v]];
                if (module.rank > 0) ahead.add(module.expand + static_cast<int64_t>(spots.number[v]) * kRanks * module.rank, module.rank / 2);
            }
        }
    }

    // A panel's part of what a row's adapter adds.
    void add(int layer, const Spots &spots, int row, Floats (&sums)[kVectors]) const {
        if (of_[row] == nullptr) return;
        const PagodaLowRank *modules = of_[row]->modules + layer * kModules;
        const Factor *low = &low_[static_cast<size_t>(row) * width_];
        if (spots.together == kVectors) return add<kVectors>(modules, spots, 0, low, sums);
        if (spots.together == 2) return add<2>(modules, spots, 0, low, sums), add<2>(modules, spots, 2, low, sums);
        for (int v = 0; v < spots.count; ++v) add<1>(modules, spots, v, low, sums);
    }

  private:
    struct Held {
        const PagodaLowRank *modules = nullptr;
        int ranks[kAdaptable] = {}; // the most of any layer
    };
    struct Chunk {
        const Held *held;
        int begin, end; // in `order_`
    };
    static constexpr int kFirst[kAdaptable + 1] = {kQueryModule, kOutputModule, kGateModule, kDownModule, kModules};

    template <int V> static void add(const PagodaLowRank *modules, const Spots &spots, int v, const Factor *low, Floats *sums) {
        const PagodaLowRank &module = modules[spots.module[v]];
        const bf16 *outputs = module.expand + static_cast<int64_t>(spots.number[v]) * kRanks * module.rank;
        if (module.rank == kRanks) expand<V>(outputs, low + module.before, kRanks, sums + v); // what most adapters have, unrolled
        else expand<V>(outputs, low + module.before, module.rank, sums + v);
    }

    static int ranks_of(const PagodaLowRank *modules, int part) {
        int sum = 0;
        for (int module = kFirst[part]; module < kFirst[part + 1]; ++module) sum += modules[module].rank;
        return sum;
    }

    int groups(Fused fused) const { return ranks_[static_cast<int>(fused)] / kRanks; }

    int vectors(int module) const {
        if (module == kQueryModule) return widths_.query;
        return module == kKeyModule || module == kValueModule ? widths_.key : widths_.hidden;
    }

    const Widths widths_;
    const int layers_, together_;
    int width_ = 0; // of a row of `low_`
    std::vector<Held> held_;
    std::vector<const Held *> of_; // [tokens of the pass], null without an adapter
    std::vector<char> fresh_; // whether a token is the first of its chunk
    std::vector<std::pair<int, int>> order_; // slot and token
    std::vector<Chunk> chunks_;
    int ranks_[kAdaptable] = {}; // the most of any adapter of the pass
    std::vector<Factor> low_; // [tokens, width_]: A x, the modules of a fused matrix behind each other
};

} // namespace pagoda
