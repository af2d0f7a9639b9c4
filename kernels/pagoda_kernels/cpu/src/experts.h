// Experts: which of them a token goes to, and where its row lies among those of the same expert. Rows are sorted by expert, so that each
// expert that is hit reads its weights once, and one that is not hit reads none.
#pragma once

#include <vector>

#include "simd.h"

namespace pagoda {

constexpr int kMostExperts = 1024;

class Mixture {
  public:
    struct Group { // rows of one expert, `first` and following of the sorted ones
        int32_t expert, first, count;
    };

    // `together` tokens of `hidden`, each to `per_token` of `experts` of width `width`: the most of any layer.
    void resize(int together, int layers, int experts, int per_token, int hidden, int width) {
        const size_t rows = static_cast<size_t>(together) * per_token;
        experts_ = (experts + 63) / 64 * 64;
        logits.resize(static_cast<size_t>(together) * experts_);
        chosen_.resize(rows);
        share.resize(rows);
        place.resize(rows);
        sorted.resize(rows * hidden);
        inner.resize(rows * width);
        out.resize(rows * hidden);
        groups.resize(experts);
        hits_.resize(layers);
    }

    float *logits_of(int token) { return &logits[static_cast<size_t>(token) * experts_]; }

    // The `each` largest of softmax(logits), of equals the first. Where a logit is no number the shares are none either.
    void choose(int token, int experts, int each, bool normalised) {
        const float *from = logits_of(token);
        int32_t *chosen = &chosen_[static_cast<size_t>(token) * each];
        float powers[kMostExperts], *shares = &share[static_cast<size_t>(token) * each];
        const float sum = sum_of_powers(from, experts, largest_of(from, experts), powers);
        float kept = 0;
        for (int slot = 0; slot < each; ++slot) {
            int best = -1; // what is taken is below 0
            for (int e = 0; e < experts; ++e)
                if (!(powers[e] < 0) && (best < 0 || powers[e] > powers[best])) best = e;
            chosen[slot] = best;
            kept += shares[slot] = powers[best];
            powers[best] = -1;
        }
        const float whole = normalised && sum == sum ? kept : sum;
        for (int slot = 0; slot < each; ++slot) shares[slot] /= whole;
    }

    // Where each token's rows go: by expert, of one expert in order of the tokens.
    void group(int layer, int tokens, int experts, int each) {
        int32_t counts[kMostExperts] = {}, next[kMostExperts];
        for (int row = 0; row < tokens * each; ++row) ++counts[chosen_[row]];
        int hits = 0, first = 0;
        for (int e = 0; e < experts; ++e) {
            next[e] = first;
            if (counts[e] > 0) groups[hits++] = {e, first, counts[e]};
            first += counts[e];
        }
        for (int row = 0; row < tokens * each; ++row) place[row] = next[chosen_[row]]++;
        hits_[layer] = hits;
    }

    // Kept by layer: a thread that comes late walks through layers that others have left.
    int hits(int layer) const { return hits_[layer]; }

    std::vector<float> logits, share, out; // out: [rows, hidden], what an expert makes of a row
    std::vector<int32_t> place;            // [tokens, per_token]: which sorted row
    std::vector<Factor> sorted, inner;       // [rows, hidden], [rows, width]
    std::vector<Group> groups;

  private:
    static float largest_of(const float *values, int count) {
        float most = values[0];
        for (int i = 1; i < count; ++i)
            if (!(values[i] <= most)) most = values[i];
        return most;
    }

    static float sum_of_powers(const float *values, int count, float most, float *powers) {
        for (int i = 0; i < count; i += 16) store(powers + i, exponential(sub(load(values + i), all_of(most)))); // a line of logits is padded to 64
        float sum = 0;
        for (int i = 0; i < count; ++i) sum += powers[i];
        return sum;
    }

    int experts_ = 0; // of a line of `logits`
    std::vector<int32_t> chosen_;
    std::vector<int32_t> hits_;
};

} // namespace pagoda
