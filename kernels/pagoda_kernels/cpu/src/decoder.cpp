// One step of a decoder on the CPU: tokens in, logits out, every layer in one run of the team every thread passing the stages in order.
//
// Numerics: weights, keys, values and the inputs of every matrix are bf16 (or 8 bits); sums, norms, softmax and the residual stream are
// fp32. model/decoder.py in the daemon is the same mathematics in torch and the judge of this file.
#include "border.h"
#include "panels.h"

namespace pagoda {

// One thread's walk through the stages. All threads walk alike; items of a stage go to whoever is free.
class Decoder::Stages {
  public:
    Stages(Decoder &decoder, int thread) : team_(decoder.team_), spent_(decoder.spent_), thread_(thread), since_(__rdtsc()) {}

    template <class Item> void each(PagodaStage stage, int count, const Item &item) {
        team_.each(next_++, count, item);
        if (thread_ != 0) return;
        const uint64_t now = __rdtsc(); // 20 ns; a step of a small model has a hundred stages and takes 1 ms
        spent_[stage] += now - since_;
        since_ = now;
    }

  private:
    Team &team_;
    uint64_t *spent_;
    const int thread_;
    int next_ = 0;
    uint64_t since_;
};

namespace {

Widths widths_of(const PagodaShape &shape) {
    const int heads = shape.heads * shape.head_dim;
    return {heads / 16, shape.kv_heads * shape.head_dim / 16, shape.hidden / 16, {shape.hidden, heads, shape.hidden, shape.intermediate}};
}

constexpr PagodaStage kStageOf[] = {kQkv, kOutput, kGateUp, kDown, kHead}; // by Fused

} // namespace

Decoder::Decoder(const PagodaShape &shape, const PagodaLayer *layers)
    : shape_(shape), layers_(layers, layers + shape.layers), team_(shape.threads, kStagesAround + kStagesOfLayer * shape.layers), adapters_(widths_of(shape), shape.layers, kTogether) {
    const size_t widest = std::max({shape.hidden, shape.heads * shape.head_dim, shape.intermediate});
    scratch_.hidden.resize(static_cast<size_t>(kTogether) * shape.hidden);
    scratch_.fused.resize(static_cast<size_t>(kTogether) * (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
    scratch_.x.resize(kTogether * static_cast<size_t>(shape.hidden));
    scratch_.queries.resize(kTogether * static_cast<size_t>(shape.heads) * shape.head_dim);
    scratch_.wide.resize(kTogether * widest);
    scratch_.narrow.resize(kTogether * widest);
    scratch_.scale.resize(kTogether * widest / kGroup);
    scratch_.shift.resize(kTogether * widest / kGroup);
    room_for_experts();
}

void Decoder::room_for_experts() {
    int experts = 0, each = 0, width = 0;
    for (const PagodaLayer &layer : layers_) {
        if (layer.experts == 0) continue;
        experts = std::max(experts, layer.experts);
        each = std::max(each, layer.per_token);
        width = std::max(width, layer.down->inputs);
    }
    if (experts > 0) mixture_.resize(kTogether, shape_.layers, experts, each, shape_.hidden, width);
}

const char *Decoder::step(const PagodaStep &step) {
    if (const char *why = wrong(shape_, step, adapters_)) return why;
    int wanted = 0;
    for (int first = 0; first < step.tokens; first += kTogether) {
        Part part{&step, first, std::min(kTogether, step.tokens - first), wanted, 0};
        while (wanted < step.wanted_count && step.wanted[wanted] < first + part.count) ++wanted;
        part.wanted_count = wanted - part.wanted_first;
        pass(part);
    }
    return nullptr;
}

void Decoder::pass(const Part &part) {
    tile(part);
    adapters_.choose(part.step->adapters, part.step->rows + part.first, part.count);
    team_.run([&](int thread) {
        Stages stages(*this, thread);
        stages.each(kEmbed, part.count, [&](int token) {
            embed_row(shape_.embedding, shape_.head, part.step->ids[part.first + token], shape_.hidden, &scratch_.hidden[static_cast<size_t>(token) * shape_.hidden]);
        });
        for (int index = 0; index < shape_.layers; ++index) {
            attention(stages, part, layers_[index], index);
            mlp(stages, part, layers_[index], index);
        }
        if (part.wanted_count > 0) logits(stages, part);
    });
}

// Neighbouring tokens of a row share what they read of it, as the heads of a group do.
void Decoder::tile(const Part &part) {
    const int group = shape_.heads / shape_.kv_heads, heads = std::min(group, kQueries), together = std::max(1, kQueries / group);
    const int32_t *rows = part.step->rows + part.first;
    scratch_.tiles.clear();
    for (int token = 0, count; token < part.count; token += count) {
        for (count = 1; count < together && token + count < part.count && rows[token + count] == rows[token];) ++count;
        for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head)
            for (int head = 0; head < group; head += heads) scratch_.tiles.push_back({token, count, kv_head * group + head, std::min(heads, group - head), kv_head});
    }
}

template <class Done> void Decoder::multiply(Stages &stages, const Product &product, const Done &done) {
    const bool narrow = is_narrow(product.linear, product.count);
    const int shrinking = adapters_.items(product.fused);
    if (shrinking > 0) stages.each(kShrink, shrinking, [&](int item) { adapters_.shrink(product.fused, product.layer, item, product.x); });
    stages.each(kStageOf[static_cast<int>(product.fused)], product.linear.panels(), [&](int panel) {
        Ahead ahead;
        const Rows rows{product.x, scratch_.narrow.data(), scratch_.scale.data(), scratch_.shift.data(), product.count, &ahead};
        if (shrinking == 0) return panel_rows(product.linear, rows, panel, narrow, Plain<Done>{done});
        const Spots spots = adapters_.spots(product.fused, panel);
        panel_rows(product.linear, rows, panel, narrow, Adapted<Done>{done, adapters_, product.layer, spots, ahead, product.linear.inputs});
    });
}

void Decoder::narrow(Stages &stages, const Factor *rows, int count, const Linear &next) {
    if (!is_narrow(next, count)) return;
    stages.each(kQuantise, count, [&](int row) { narrow_row(rows, row, next.inputs); });
}

void Decoder::narrow_row(const Factor *rows, int row, int inputs) {
    const size_t start = static_cast<size_t>(row) * inputs;
    quantise(rows + start, inputs, &scratch_.narrow[start], &scratch_.scale[start / kGroup], &scratch_.shift[start / kGroup]);
}

void Decoder::norm(Stages &stages, int count, const float *weight, const Linear &next) {
    stages.each(kNorm, count, [&](int row) {
        const size_t start = static_cast<size_t>(row) * shape_.hidden;
        norm_row(&scratch_.hidden[start], weight, shape_.hidden, shape_.eps, &scratch_.x[start]);
        if (is_narrow(next, count)) narrow_row(scratch_.x.data(), row, shape_.hidden);
    });
}

void Decoder::attention(Stages &stages, const Part &part, const PagodaLayer &layer, int index) {
    norm(stages, part.count, layer.attention_norm, layer.qkv);
    const size_t width = static_cast<size_t>(layer.qkv.outputs);
    multiply(stages, {Fused::kQkv, index, layer.qkv, scratch_.x.data(), part.count}, [&](int row, int panel, const Floats(&sums)[kVectors]) {
        for (int v = 0; v < kVectors && static_cast<size_t>(panel) * kPanel + v * 16 < width; ++v) store(&scratch_.fused[row * width + panel * kPanel + v * 16], sums[v]);
    });
    stages.each(kPlace, part.count * shape_.kv_heads, [&](int item) { place_token(part, layer, index, item / shape_.kv_heads, item % shape_.kv_heads); });
    stages.each(kAttend, static_cast<int>(scratch_.tiles.size()), [&](int item) { attend_tile(part, scratch_.tiles[item], index); });
    narrow(stages, scratch_.wide.data(), part.count, layer.output);
    add_residual(stages, {Fused::kOutput, index, layer.output, scratch_.wide.data(), part.count});
}

void Decoder::add_residual(Stages &stages, const Product &product) {
    multiply(stages, product, [&](int row, int panel, const Floats(&sums)[kVectors]) {
        for (int v = 0; v < kVectors && panel * kPanel + v * 16 < shape_.hidden; ++v) {
            float *place = &scratch_.hidden[static_cast<size_t>(row) * shape_.hidden + panel * kPanel + v * 16];
            store(place, add(load(place), sums[v]));
        }
    });
}

// Norm and turn the heads of one key-value group, keep its queries as bf16, write its key and value to the token's slot.
void Decoder::place_token(const Part &part, const PagodaLayer &layer, int index, int token, int kv_head) {
    const int dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads, at = part.first + token;
    const int position = part.step->positions[at];
    const float *cos = shape_.cos + static_cast<int64_t>(position) * (dim / 2), *sin = shape_.sin + static_cast<int64_t>(position) * (dim / 2);
    float *fused = &scratch_.fused[static_cast<size_t>(token) * layer.qkv.outputs];
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        if (layer.query_norm != nullptr) norm_head(fused + head * dim, layer.query_norm, dim, shape_.eps);
        turn_head(fused + head * dim, cos, sin, dim);
        narrow_head(fused + head * dim, dim, &scratch_.queries[(static_cast<size_t>(token) * shape_.heads + head) * dim]);
    }
    float *key = fused + (shape_.heads + kv_head) * dim;
    if (layer.key_norm != nullptr) norm_head(key, layer.key_norm, dim, shape_.eps);
    turn_head(key, cos, sin, dim);
    const int block = part.step->tables[static_cast<int64_t>(part.step->rows[at]) * part.step->table_width + position / kBlock];
    const int64_t place = block * block_elements() + static_cast<int64_t>(kv_head) * kBlock * dim;
    write_key(key, dim, pages(index, 0) + place, position % kBlock);
    write_value(fused + (shape_.heads + shape_.kv_heads + kv_head) * dim, dim, pages(index, 1) + place, position % kBlock);
}

void Decoder::attend_tile(const Part &part, const Tile &tile, int layer) {
    const PagodaStep &step = *part.step;
    const int dim = shape_.head_dim, at = part.first + tile.token, window = layers_[layer].window;
    const int64_t head_offset = static_cast<int64_t>(tile.kv_head) * kBlock * dim;
    const Pages view{pages(layer, 0) + head_offset, pages(layer, 1) + head_offset, step.tables + static_cast<int64_t>(step.rows[at]) * step.table_width,
                     block_elements(), dim, window, shape_.attention_scale};
    Queries queries{};
    for (int t = 0; t < tile.tokens; ++t)
        for (int h = 0; h < tile.heads; ++h) {
            const size_t start = (static_cast<size_t>(tile.token + t) * shape_.heads + tile.head + h) * dim;
            queries.vector[queries.count] = &scratch_.queries[start];
            queries.out[queries.count] = &scratch_.wide[start];
            queries.position[queries.count++] = step.positions[at + t];
        }
    queries.oldest = window > 0 ? std::max(0, step.positions[at] - window + 1) : 0;
    queries.newest = step.positions[at + tile.tokens - 1];
    attend(queries, view);
}

void Decoder::mlp(Stages &stages, const Part &part, const PagodaLayer &layer, int index) {
    if (layer.experts > 0) return mix(stages, part, layer, index);
    norm(stages, part.count, layer.mlp_norm, *layer.gate_up);
    multiply(stages, {Fused::kGateUp, index, *layer.gate_up, scratch_.x.data(), part.count}, [&](int row, int panel, const Floats(&sums)[kVectors]) {
        store_gated(sums, &scratch_.wide[static_cast<size_t>(row) * shape_.intermediate + panel * (kPanel / 2)]);
    });
    narrow(stages, scratch_.wide.data(), part.count, *layer.down);
    add_residual(stages, {Fused::kDown, index, *layer.down, scratch_.wide.data(), part.count});
}

// The same for experts: every row of an expert's group meets its matrices, and a token sums up what its experts made of it.
void Decoder::mix(Stages &stages, const Part &part, const PagodaLayer &layer, int index) {
    const int hidden = shape_.hidden, width = layer.down->inputs, each = layer.per_token;
    route(stages, part, layer, index);
    const int hits = mixture_.hits(index), gates = layer.gate_up->panels(), downs = layer.down->panels();
    stages.each(kGateUp, hits * gates, [&](int item) {
        const Mixture::Group &group = mixture_.groups[item / gates];
        const Factor *x = &mixture_.sorted[static_cast<size_t>(group.first) * hidden];
        Factor *inner = &mixture_.inner[static_cast<size_t>(group.first) * width];
        all_rows(layer.gate_up[group.expert], x, group.count, item % gates, [&](int row, int panel, const Floats(&sums)[kVectors]) {
            store_gated(sums, inner + static_cast<size_t>(row) * width + panel * (kPanel / 2));
        });
    });
    stages.each(kDown, hits * downs, [&](int item) {
        const Mixture::Group &group = mixture_.groups[item / downs];
        const Factor *x = &mixture_.inner[static_cast<size_t>(group.first) * width];
        float *out = &mixture_.out[static_cast<size_t>(group.first) * hidden];
        all_rows(layer.down[group.expert], x, group.count, item % downs, [&](int row, int panel, const Floats(&sums)[kVectors]) {
            for (int v = 0; v < kVectors && panel * kPanel + v * 16 < hidden; ++v) store(out + static_cast<size_t>(row) * hidden + panel * kPanel + v * 16, sums[v]);
        });
    });
    stages.each(kMix, part.count, [&](int token) { add_shares(token, each); });
}

// Choose each token's experts, and sort the rows by expert.
void Decoder::route(Stages &stages, const Part &part, const PagodaLayer &layer, int index) {
    const int hidden = shape_.hidden, each = layer.per_token;
    norm(stages, part.count, layer.mlp_norm, layer.router);
    stages.each(kRoute, layer.router.panels(), [&](int panel) {
        all_rows(layer.router, scratch_.x.data(), part.count, panel, [&](int row, int at, const Floats(&sums)[kVectors]) {
            for (int v = 0; v < kVectors; ++v) store(mixture_.logits_of(row) + at * kPanel + v * 16, sums[v]);
        });
    });
    stages.each(kRoute, part.count, [&](int token) { mixture_.choose(token, layer.experts, each, layer.normalised != 0); });
    stages.each(kRoute, 1, [&](int) { mixture_.group(index, part.count, layer.experts, each); });
    stages.each(kMix, part.count, [&](int token) {
        for (int slot = 0; slot < each; ++slot) {
            Factor *to = &mixture_.sorted[static_cast<size_t>(mixture_.place[token * each + slot]) * hidden];
            std::memcpy(to, &scratch_.x[static_cast<size_t>(token) * hidden], sizeof(Factor) * hidden);
        }
    });
}

// In the order of the shares, which is the token's own: so its sum does not depend on who else shares its experts.
void Decoder::add_shares(int token, int each) {
    float *to = &scratch_.hidden[static_cast<size_t>(token) * shape_.hidden];
    for (int i = 0; i < shape_.hidden; i += 16) {
        Floats sum = zeros();
        for (int slot = 0; slot < each; ++slot) {
            const float *row = &mixture_.out[static_cast<size_t>(mixture_.place[token * each + slot]) * shape_.hidden];
            sum = fmadd(all_of(mixture_.share[token * each + slot]), load(row + i), sum);
        }
        store(to + i, add(load(to + i), sum));
    }
}

void Decoder::logits(Stages &stages, const Part &part) {
    const PagodaStep &step = *part.step;
    const int count = part.wanted_count;
    const size_t width = static_cast<size_t>(shape_.head.panels()) * kPanel;
    const int32_t *places = step.places + part.wanted_first;
    stages.each(kNorm, count, [&](int row) {
        const size_t from = static_cast<size_t>(step.wanted[part.wanted_first + row] - part.first) * shape_.hidden, to = static_cast<size_t>(row) * shape_.hidden;
        norm_row(&scratch_.hidden[from], shape_.norm, shape_.hidden, shape_.eps, &scratch_.x[to]);
        if (is_narrow(shape_.head, count)) narrow_row(scratch_.x.data(), row, shape_.hidden);
        if (step.states == nullptr) return;
        float *state = step.states + static_cast<size_t>(places[row]) * shape_.hidden;
        for (int i = 0; i < shape_.hidden; ++i) state[i] = to_float(scratch_.x[to + i]);
    });
    multiply(stages, {Fused::kHead, 0, shape_.head, scratch_.x.data(), count}, [&](int row, int panel, const Floats(&sums)[kVectors]) {
        for (int v = 0; v < kVectors; ++v) store(step.logits + places[row] * width + panel * kPanel + v * 16, sums[v]);
    });
    if (step.likeliest == nullptr) return;
    stages.each(kHead, count, [&](int row) {
        const Largest found = largest(step.logits + places[row] * width, shape_.vocab);
        step.likeliest[places[row]] = found.index;
        step.best[places[row]] = found.value;
    });
}

const char *Decoder::hold(int slot, const PagodaLowRank *modules) {
    if (slot < 1) return "an adapter's slot must be at least 1";
    adapters_.hold(slot, modules);
    return nullptr;
}

// A source may be a destination of the same call: all of a layer's are read before any is written.
const char *Decoder::copy_blocks(const int32_t *pairs, int count) {
    if (!all_below(pairs, 2 * static_cast<int64_t>(count), shape_.blocks)) return "a block that does not exist is to be copied";
    const size_t size = static_cast<size_t>(block_elements());
    std::vector<bf16> held(count * size);
    for (int layer = 0; layer < shape_.layers; ++layer)
        for (int part = 0; part < 2; ++part) {
            bf16 *from = pages(layer, part);
            for (int i = 0; i < count; ++i) std::memcpy(&held[i * size], from + pairs[2 * i] * size, sizeof(bf16) * size);
            for (int i = 0; i < count; ++i) std::memcpy(from + pairs[2 * i + 1] * size, &held[i * size], sizeof(bf16) * size);
        }
    return nullptr;
}

} // namespace pagoda
