// Attention of a prefill chunk by matrix tiles (amx.h): scores and weighted values as products of bfloat16 tiles, the
// softmax between them in float32.
//
// Both products are made transposed: scores as keys × queries, outputs as columns × queries. So a key's row is a tile's
// row as it lies in the cache, a lane is a query from the first product to the last, and maxima and sums run down the
// lanes: nothing is reduced across a vector. Values are transposed once per item; 32 queries go over all of them.
//
// A row's result doesn't depend on the rows beside it: a tile's columns are sums of their own, blocks begin at
// multiples of 64 keys, and what is masked adds exact zeros.
#pragma once

#include "amx.h"
#include "attention_prefetch.h"

namespace blazr {

constexpr int kStripKeys = 32;             // keys whose pairs fill a tile's line
constexpr int kGroupRows = 32;             // rows that go over the keys together: two tiles of 16
constexpr int kStepValues = 32;            // bfloat16 values of a tile's line
constexpr int64_t kTileFloats = 256;       // 1 KiB
constexpr int64_t kPackedFloats = 131072;  // 512 KiB of packed keys and values stay in the second cache

#ifdef BLAZR_AMX

// 2^x for x ≤ 8 or so; 0 for -inf, NaN stays NaN. The minimax polynomial of 2^r of degree 3 for 0 ≤ r ≤ 1; its error of
// 7.5e-5 is small beside the rounding of the weights to bfloat16 (2e-3).
inline vf exp2_short(vf x) {
  const __m512 from = std::bit_cast<__m512>(x);
  constexpr int kBelow = 9;  // x minus the whole number below it
  const vf r = std::bit_cast<vf>(_mm512_reduce_ps(from, kBelow));
  vf p = splat(0.0780245226f);
  p = p * r + 0.226067155f;
  p = p * r + 0.69583354f;
  p = p * r + 0.999925219f;
  return std::bit_cast<vf>(_mm512_scalef_ps(std::bit_cast<__m512>(p), from));
}

// Two rows of 16 weights as bfloat16 (to nearest, ties up), interleaved: the first's in the lower halves. Fewer steps
// than the instruction that converts, whose halves would have to be put in order.
inline vu weight_pairs(vf first, vf second) {
  constexpr uint32_t kHalf = 0x8000;
  const vu low = (std::bit_cast<vu>(first) + kHalf) >> 16, high = std::bit_cast<vu>(second) + kHalf;
  return std::bit_cast<vu>(
      _mm512_mask_blend_epi16(0xaaaaaaaa, std::bit_cast<__m512i>(low), std::bit_cast<__m512i>(high)));
}

// Adds both of each pair of weights: what is divided by at the end is the sum of what was multiplied by.
inline vf add_pairs(vf sum, vu weights) {
  constexpr int kOnes = 0x3f803f80;
  return std::bit_cast<vf>(_mm512_dpbf16_ps(
      std::bit_cast<__m512>(sum), std::bit_cast<__m512bh>(weights), std::bit_cast<__m512bh>(_mm512_set1_epi32(kOnes))));
}

// A row of 32 values, of which `left` exist (any number); the others are 0.
inline __m512i load_line(const bf16* from, int64_t left) {
  if (left >= kStepValues) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16(left <= 0 ? 0u : (1u << left) - 1, from);
}

// One item by tiles.
class TileAttention {
 public:
  TileAttention(const Operands<bf16>& on, const Item& item, Scratch& scratch)
      : on_(on),
        item_(item),
        steps_(ceil_div(on.shape.width, kStepValues)),
        pairs_(ceil_div(on.shape.value_width, 2 * kAmxRows)),
        rows_(item.num_tokens * on.shape.group),
        groups_(ceil_div(rows_, kGroupRows)) {
    block_floats_ = 4 * kTileFloats * (steps_ + pairs_);
    output_floats_ = 4 * kTileFloats * pairs_;
    const int64_t keys = round_up(item.stop_key - item.first_key, kKeys);
    packed_keys_ = std::min(keys, std::max<int64_t>(1, kPackedFloats / block_floats_) * kKeys);
    const int64_t kept = packed_keys_ < keys ? groups_ : 1;  // groups whose state outlives a run over packed keys
    const int64_t state = output_floats_ + 4 * kLanes;
    const int64_t packed = packed_keys_ / kKeys * block_floats_, queries = 2 * steps_ * kTileFloats;
    float* memory = scratch.take(packed + queries + 2 * (kScores + kWeights) + kept * state);
    auto carve = [&memory](int64_t count) {
      float* part = memory;
      memory += count;
      return part;
    };
    packed_ = carve(packed);
    queries_ = carve(queries);
    for (float*& scores : scores_) scores = carve(kScores);
    for (float*& weights : weights_) weights = carve(kWeights);
    states_ = carve(kept * state);
    state_stride_ = kept > 1 ? state : 0;
    const ScoreRule& rule = on.rule;
    is_plain_ = rule.softcap == 0 && rule.scale > 0;
    constexpr float kLog2e = 1.44269504088896341f;
    factor_ = is_plain_ ? rule.scale * kLog2e : 1.0f;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, kAmxRows);
    tiles_.configure(config);
  }

  void run() {
    for (int64_t from = item_.first_key; from < item_.stop_key; from += packed_keys_) {
      const int64_t stop = std::min(item_.stop_key, from + packed_keys_);
      for (int64_t key = from; key < stop; key += kStripKeys) pack_strip(key, block_of(key - from));
      for (int64_t group = 0; group < groups_; ++group) run_group(group, from, stop);
    }
  }

 private:
  static constexpr int64_t kScores = kKeys * kGroupRows, kWeights = kScores / 2;

  // Products that are under way: the weighted values of the block before and the scores of the block after the one
  // whose weights are made, in steps of four instructions. Tiles hold sums (0 to 3) and operands. Sums are stored some
  // time after they are asked for: a store that waits for them keeps later instructions from starting.
  struct Products {
    // Values × weights: each 32 columns of the output take the block's strips, one after the other.
    const float *values = nullptr, *weights = nullptr;
    float* sums = nullptr;
    int64_t num_values = 0;
    int strips = 0, strip = 0;
    // Keys × queries: each strip takes all columns.
    const float *keys = nullptr, *queries = nullptr;
    float* scores = nullptr;
    int64_t num_keys = 0, steps = 0, step = 0;
    float* to_store = nullptr;

    int64_t at = 0;

    int64_t count() const { return num_values + num_keys; }

    bool is_done() const { return at == count(); }

    void advance() {
      stored_before();
      if (at < num_values) {
        add_values();
      } else {
        add_scores();
      }
      ++at;
    }

    void store_sums() {
      if (to_store != nullptr) store_four(to_store);
      to_store = nullptr;
      stored_before();
    }

    void finish() {
      while (!is_done()) advance();
      store_sums();
    }

    void add_values() {
      if (strip == 0) {
        store_sums();
        load_four(sums);
      }
      const float *from = values, *by = weights + strip * 2 * kTileFloats;
      values += strips == 1 ? 4 * kTileFloats : 2 * kTileFloats;
      multiply(from, by);
      if (++strip < strips) return;
      strip = 0;
      to_store = sums;
      sums += 4 * kTileFloats;
    }

    void add_scores() {
      if (step == 0) {
        store_sums();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      const float *from = keys, *by = queries + step * 2 * kTileFloats;
      keys += 2 * kTileFloats;
      multiply(from, by);
      if (++step < steps) return;
      step = 0;
      to_store = scores;
      scores += 4 * kTileFloats;
    }

    // Two tiles times two.
    static void multiply(const float* left, const float* right) {
      _tile_loadd(4, left, kAmxLine);
      _tile_loadd(6, right, kAmxLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right + kTileFloats, kAmxLine);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, left + kTileFloats, kAmxLine);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }

    static void load_four(const float* from) {
      _tile_loadd(0, from, 2 * kAmxLine);
      _tile_loadd(1, from + kLanes, 2 * kAmxLine);
      _tile_loadd(2, from + 2 * kTileFloats, 2 * kAmxLine);
      _tile_loadd(3, from + 2 * kTileFloats + kLanes, 2 * kAmxLine);
    }

    static void store_four(float* to) {
      _tile_stored(0, to, 2 * kAmxLine);
      _tile_stored(1, to + kLanes, 2 * kAmxLine);
      _tile_stored(2, to + 2 * kTileFloats, 2 * kAmxLine);
      _tile_stored(3, to + 2 * kTileFloats + kLanes, 2 * kAmxLine);
    }
  };

  float* block_of(int64_t key) const { return packed_ + key / kKeys * block_floats_; }
  int64_t position_of(int64_t row) const { return item_.position + row / on_.shape.group; }

  // 32 keys, half of a block: for each 32 columns two tiles of 16 keys, and for each 32 columns of the values two tiles
  // of 16 columns.
  void pack_strip(int64_t first, float* block) const {
    const bf16 *keys[kStripKeys], *values[kStripKeys];
    const int count = find_rows(on_, item_, first, kStripKeys, keys, values);
    const int64_t half = first % kKeys / kStripKeys;
    for (int i = 0; i < kStripKeys; ++i) {
      float* line = block + half * steps_ * 2 * kTileFloats + i * kLanes;
      for (int64_t at = 0; at < steps_ * kStepValues; at += kStepValues, line += 2 * kTileFloats)
        _mm512_storeu_si512(line, i < count ? load_line(keys[i] + at, on_.shape.width - at) : _mm512_setzero_si512());
    }
    float* to = block + (steps_ * 2 + half) * 2 * kTileFloats;
    for (int64_t pair = 0; pair < pairs_; ++pair, to += 4 * kTileFloats) {
      // Lane l of four units holds columns 8l to 8l + 3 of `low`, 8l + 4 to 8l + 7 of `high`.
      vu low[kLanes], high[kLanes];
      const int64_t at = pair * kStepValues, left = on_.shape.value_width - at;
      for (int i = 0; i < kLanes; ++i) {
        const int even = 2 * i, odd = even + 1;
        const __m512i first_row = even < count ? load_line(values[even] + at, left) : _mm512_setzero_si512();
        const __m512i second_row = odd < count ? load_line(values[odd] + at, left) : _mm512_setzero_si512();
        low[i] = std::bit_cast<vu>(_mm512_unpacklo_epi16(first_row, second_row));
        high[i] = std::bit_cast<vu>(_mm512_unpackhi_epi16(first_row, second_row));
      }
      transpose(low);
      transpose(high);
      for (int i = 0; i < kLanes; ++i) {
        const int column = i / 4 * 8 + i % 4;
        std::memcpy(to + column * kLanes, &low[i], sizeof low[i]);
        std::memcpy(to + (column + 4) * kLanes, &high[i], sizeof high[i]);
      }
    }
  }

  // Where the rows of a group are, in the step and in the sequence; rows that don't exist see what the last one sees.
  void find_group(int64_t first, int64_t count) {
    const int64_t group = on_.shape.group;
    int64_t token = first / group, head = first % group;
    for (int64_t row = 0; row < kGroupRows; ++row) {
      places_[row] = (item_.first_row + token) * on_.shape.heads + item_.head * group + head;
      tokens_[row] = static_cast<int32_t>(token);
      if (row + 1 >= count) continue;
      if (++head == group) {
        head = 0;
        ++token;
      }
    }
  }

  // The queries of a group: for each 16 rows and 32 columns a tile of 16 pairs of columns × 16 rows.
  void pack_queries(int64_t count) const {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t step = 0; step < steps_; ++step) {
        const int64_t at = step * kStepValues, left = on_.shape.width - at;
        const int64_t here = std::min<int64_t>(kAmxRows, count - half * kAmxRows);
        vu block[kLanes] = {};
        for (int64_t i = 0; i < here; ++i)
          block[i] =
              std::bit_cast<vu>(load_line(on_.query + places_[half * kAmxRows + i] * on_.shape.width + at, left));
        transpose(block);
        float* to = queries_ + (step * 2 + half) * kTileFloats;
        for (int i = 0; i < kLanes; ++i) std::memcpy(to + i * kLanes, &block[i], sizeof block[i]);
      }
    }
  }

  // 32 rows over the packed keys. While a block's scores become weights, the tiles compute what is before and after it.
  void run_group(int64_t group, int64_t from, int64_t stop) {
    const int64_t first = group * kGroupRows, count = std::min<int64_t>(kGroupRows, rows_ - first);
    const int64_t lowest = position_of(first), highest = position_of(first + count - 1), window = on_.rule.window;
    const int64_t seen = window ? std::max<int64_t>(0, lowest - window + 1) / kKeys * kKeys : 0;
    const int64_t begin = std::max(from, seen), end = std::min(stop, highest + 1);
    if (begin >= end) return;
    float* output = states_ + group * state_stride_;
    total_ = output + output_floats_;
    base_ = total_ + 2 * kLanes;
    if (begin == std::max(item_.first_key, seen)) {
      std::fill_n(output, output_floats_ + 2 * kLanes, 0.0f);
      std::fill_n(base_, 2 * kLanes, kNone);
    }
    find_group(first, count);
    pack_queries(count);

    auto strips_of = [end](int64_t block) { return end <= block ? 0 : end - block > kStripKeys ? 2 : 1; };
    auto values_of = [&](int64_t block) { return block_of(block - from) + steps_ * 4 * kTileFloats; };
    Products products;
    products.queries = queries_;
    products.steps = steps_;
    auto begin_scores = [&](int64_t block, int turn) {
      products.keys = block_of(block - from);
      products.scores = scores_[turn];
      products.num_keys = steps_ * strips_of(block);
      products.at = 0;
    };
    auto begin_values = [&](int64_t block, int turn) {
      products.values = values_of(block);
      products.weights = weights_[turn];
      products.sums = output;
      products.strips = strips_of(block);
      products.num_values = pairs_ * products.strips;
    };
    begin_scores(begin, 0);
    products.finish();
    int turn = 0;
    for (int64_t block = begin; block < end; block += kKeys, turn ^= 1) {
      const int strips = strips_of(block);
      const int64_t keys = strips * kStripKeys;
      float* scores = scores_[turn];
      if (!is_plain_) apply_rule(scores, keys);
      if (block + keys - 1 > lowest || (window && block <= highest - window)) hide(scores, block, keys);
      vf kept[2];
      const bool moves = move_base(scores, 0, keys, kept[0]) | move_base(scores, 1, keys, kept[1]);
      begin_scores(block + kKeys, turn ^ 1);
      make_weights(scores, strips, weights_[turn], products);
      products.finish();
      if (moves) scale(output, kept);
      begin_values(block, turn);
    }
    begin_scores(end, turn);
    products.num_keys = 0;
    products.finish();
    if (end == highest + 1) finish(count, output);
  }

  void apply_rule(float* scores, int64_t keys) const {
    for (int64_t i = 0; i < keys * kGroupRows; i += kLanes) store(scores + i, on_.rule(load(scores + i)));
  }

  // What lies in a row's future or before its window adds nothing.
  void hide(float* scores, int64_t block, int64_t keys) const {
    constexpr int64_t kFar = 1 << 30;
    const auto position = static_cast<int32_t>(item_.position - block);
    const auto window = static_cast<int32_t>(std::min(on_.rule.window ? on_.rule.window : kFar, kFar));
    for (int half = 0; half < 2; ++half) {
      vi last;
      std::memcpy(&last, tokens_ + half * kLanes, sizeof last);
      last += position;
      const vi before = last - window;
      for (int32_t key = 0; key < keys; ++key) {
        float* at = scores + key * kGroupRows + half * kLanes;
        const vi hidden = (last < key) | (before >= key);
        store(at, hidden ? splat(kNone) : load(at));
      }
    }
  }

  // What the weights of 16 rows are relative to; whether it moves, and by what older sums then shrink. A base follows
  // the maximum only when that has left it by 2^8: greater weights are as exact, and the output is seldom scaled.
  bool move_base(const float* scores, int half, int64_t keys, vf& kept) const {
    constexpr float kSlack = 8;
    scores += half * kLanes;
    vf tops[4];
    for (int i = 0; i < 4; ++i) tops[i] = load(scores + i * kGroupRows);
    for (int64_t key = 4; key < keys; key += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) tops[i] = vmax(tops[i], load(scores + (key + i) * kGroupRows));
    const vf top = vmax(vmax(tops[0], tops[1]), vmax(tops[2], tops[3])) * factor_;
    const vf old = load(base_ + half * kLanes);
    const vi moves = top > old + kSlack;
    const __m512i bits = std::bit_cast<__m512i>(moves);
    kept = splat(1);
    if (_mm512_test_epi32_mask(bits, bits) == 0) return false;
    const vf base = moves ? top : old;
    store(base_ + half * kLanes, base);
    kept = moves ? exp2_short(old - base) : kept;
    store(total_ + half * kLanes, load(total_ + half * kLanes) * kept);
    return true;
  }

  // Scores of the group to weights relative to the rows' bases, and their sums.
  void make_weights(const float* scores, int strips, float* weights, Products& products) const {
    constexpr int kTurn = 4;  // pairs of keys between two turns of the tiles
    const int64_t turns = strips * kStripKeys / kTurn, count = products.count();
    int64_t due = 0;  // of `turns` parts of a step
    for (int half = 0; half < 2; ++half) {
      const vf base = load(base_ + half * kLanes);
      const vf shift = base == splat(kNone) ? splat(0) : base;  // nothing seen yet: all weights are 2^-inf
      vf sums[kTurn] = {};                                      // an addition's result takes long
      for (int strip = 0; strip < strips; ++strip) {
        const float* from = scores + strip * kStripKeys * kGroupRows + half * kLanes;
        auto* to = reinterpret_cast<uint32_t*>(weights + (2 * strip + half) * kTileFloats);
        for (int first = 0; first < kStripKeys / 2; first += kTurn) {
#pragma GCC unroll 4
          for (int i = 0; i < kTurn; ++i) {
            const float* at = from + 2 * (first + i) * kGroupRows;
            const vu both = weight_pairs(
                exp2_short(load(at) * factor_ - shift), exp2_short(load(at + kGroupRows) * factor_ - shift));
            sums[i] = add_pairs(sums[i], both);
            store_units(to + (first + i) * kLanes, both);
          }
          due += count;
          if (due < turns) products.store_sums();
          for (; due >= turns; due -= turns) products.advance();
        }
      }
      store(total_ + half * kLanes, load(total_ + half * kLanes) + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
    }
  }

  void scale(float* output, const vf kept[2]) const {
    for (int64_t i = 0; i < output_floats_; i += kGroupRows) {
      store(output + i, load(output + i) * kept[0]);
      store(output + i + kLanes, load(output + i + kLanes) * kept[1]);
    }
  }

  void finish(int64_t count, const float* output) const {
    const int64_t width = on_.shape.value_width;
    for (int64_t half = 0; half < 2; ++half) {
      const vf share = 1.0f / load(total_ + half * kLanes);
      const int64_t here = std::min<int64_t>(kAmxRows, count - half * kAmxRows);
      for (int64_t column = 0; column < width; column += kLanes) {
        vu block[kLanes];
        for (int i = 0; i < kLanes; ++i)
          block[i] = std::bit_cast<vu>(load(output + (column + i) * kGroupRows + half * kLanes) * share);
        transpose(block);
        for (int64_t i = 0; i < here; ++i) {
          bf16* to = on_.out + places_[half * kAmxRows + i] * width + column;
          if (column + kLanes <= width) {
            store(to, std::bit_cast<vf>(block[i]));
          } else {
            store_part(to, std::bit_cast<vf>(block[i]), width - column);
          }
        }
      }
    }
  }

  const Operands<bf16>& on_;
  const Item& item_;
  const int64_t steps_, pairs_, rows_, groups_;  // of 32 query columns, of 2 · 16 value columns
  int64_t block_floats_, output_floats_, packed_keys_, state_stride_;
  bool is_plain_;  // the scores' rule is a positive factor
  float factor_;
  float *packed_, *queries_, *states_;
  float *scores_[2], *weights_[2];            // of a block and the next one
  float *total_ = nullptr, *base_ = nullptr;  // of the group
  int64_t places_[kGroupRows];                // rows of the query and the output
  int32_t tokens_[kGroupRows];                // from the item's first
  Tiles tiles_;
};

inline void run_by_tiles(const Operands<bf16>& on, const Item& item, Scratch& scratch) {
  TileAttention(on, item, scratch).run();
}

#else

inline void run_by_tiles(const Operands<bf16>&, const Item&, Scratch&) {}

#endif

}  // namespace blazr
