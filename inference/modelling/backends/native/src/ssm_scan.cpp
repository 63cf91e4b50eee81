// One row of a run: one pass over the state. Several: chunks of small matrix products (Dao and Gu 2024,
// https://arxiv.org/abs/2405.21060, section 6), in float32, the lanes along the head's width.
#include "ssm_scan.h"

#include "ssm_tile.h"

namespace blazr {
namespace {

constexpr int64_t kChunk = 64;  // rows whose mixing matrix is made at once: it stays in the first cache
constexpr int64_t kPanel = kTileVectors * kLanes;  // greatest part of a head's width that one task has
constexpr float kLeastLogDecay = -1000.0f;         // e^-1000 is 0 in float32, and sums of these keep their digits
constexpr int64_t kGrainState = 8192;              // state values below which a second thread isn't woken

inline float bounded(float log_decay) { return log_decay < kLeastLogDecay ? kLeastLogDecay : log_decay; }

inline float exp_of(float x) { return exp(splat(x))[0]; }

// --- one row ------------------------------------------------------------------------------------

// s = α s + u_p B (+ α v_p B') for the rows p of the state, y_p = s · C. B, C and B' are padded with zeros.
template <bool kBefore>
void step_rows(
    float* state, bool fresh, float decay, const float* u, const float* v, const float* b, const float* c,
    const float* before, int64_t width, int64_t size, float* y) {
  const int64_t full = size / kLanes * kLanes, left = size - full;
  for (int64_t first = 0; first < width; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, width - first);
    vf sums[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      float* row = state + (first + i) * size;
      const vf enters = splat(u[first + i]), entered = kBefore ? splat(v[first + i]) : splat(0);
      vf even = splat(0), odd = splat(0);
      auto advance = [&](vf s, int64_t k) {
        s *= decay;
        s += enters * load(b + k);
        if constexpr (kBefore) s += entered * load(before + k);
        return s;
      };
      int64_t k = 0;
      for (; k + 2 * kLanes <= full; k += 2 * kLanes) {
        vf s = advance(fresh ? splat(0) : load(row + k), k);
        vf t = advance(fresh ? splat(0) : load(row + k + kLanes), k + kLanes);
        store(row + k, s);
        store(row + k + kLanes, t);
        even += s * load(c + k);
        odd += t * load(c + k + kLanes);
      }
      for (; k < full; k += kLanes) {
        vf s = advance(fresh ? splat(0) : load(row + k), k);
        store(row + k, s);
        even += s * load(c + k);
      }
      if (left) {
        vf s = advance(fresh ? splat(0) : load_part(row + k, left), k);
        store_part(row + k, s, left);
        even += s * load(c + k);
      }
      sums[i] = even + odd;
    }
    store(y + first, sum_rows(sums));  // y has room for whole vectors
  }
}

void step(const Recurrence& layer, const Run& run, int64_t head, float* scratch) {
  const int64_t row = run.start, width = layer.width, size = layer.size;
  const int64_t wide = Scratch::padded(width), long_ = Scratch::padded(size);
  float *u = scratch, *v = u + wide, *y = v + wide, *b = y + wide, *c = b + long_, *before = c + long_;
  const int64_t at = row * layer.heads + head, slot = run.slot * layer.heads + head;
  const int64_t group = head / (layer.heads / layer.groups);
  const float* x = layer.x + row * layer.x_stride + head * width;
  const float decay = exp_of(bounded(layer.log_decay[at]));
  const float enter = layer.enter[at], skip = layer.skip[row * layer.skip_stride + head];
  std::memcpy(b, layer.b + row * layer.bc_stride + group * size, size * sizeof(float));
  std::memcpy(c, layer.c + row * layer.bc_stride + group * size, size * sizeof(float));
  std::fill(b + size, b + long_, 0.0f);
  std::fill(c + size, c + long_, 0.0f);
  for (int64_t p = 0; p < width; ++p) u[p] = enter * x[p];
  float* state = layer.state.open(slot * width * size, width * size, run.fresh, before + long_);
  if (layer.later && !run.fresh) {
    const float factor = layer.later[at] * decay;
    layer.x_before.read(slot * width, width, v);
    for (int64_t p = 0; p < width; ++p) v[p] *= factor;
    layer.b_before.read(slot * size, size, before);
    std::fill(before + size, before + long_, 0.0f);
    step_rows<true>(state, false, decay, u, v, b, c, before, width, size, y);
  } else {
    step_rows<false>(state, run.fresh, decay, u, v, b, c, before, width, size, y);
  }
  layer.state.close(slot * width * size, width * size, state);
  float* out = layer.out + at * width;
  for (int64_t p = 0; p < width; ++p) out[p] = y[p] + skip * x[p];
}

// --- many rows ----------------------------------------------------------------------------------

struct ChunkScores {
  int64_t run, first, count;  // rows first … first+count-1 of the step
  int64_t offset;             // of its G matrices (kChunk, kChunk) in the scores
};

// G[i][j] = C_i · B_j for j ≤ i (more is written, nothing of it is read).
void score(const Recurrence& layer, const ChunkScores& chunk, int64_t group, float* scratch, float* scores) {
  const float* b = layer.b + chunk.first * layer.bc_stride + group * layer.size;
  const float* c = layer.c + chunk.first * layer.bc_stride + group * layer.size;
  transpose_matrix(b, layer.bc_stride, scratch, kChunk, chunk.count, layer.size);
  for (int64_t i = 0; i < chunk.count; i += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, chunk.count - i);
    for (int64_t j = 0; j < i + rows; j += kPanel) {
      const int64_t columns = std::min(kPanel, i + rows - j);
      with_tile(rows, (columns + kLanes - 1) / kLanes, [&](auto rows_, auto vectors_) {
        Tile<rows_.value, vectors_.value> tile;
        tile.multiply(c + i * layer.bc_stride, layer.bc_stride, 1, scratch + j, kChunk, layer.size);
        tile.write(scores + i * kChunk + j, kChunk);
      });
    }
  }
}

struct ChunkFactors {
  float high[kChunk], low[kChunk];     // the sum of log decays up to a row, in two floats
  float since[kChunk], until[kChunk];  // e^sum, e^(sum of the last - sum)
};

void fill_factors(const Recurrence& layer, const ChunkScores& chunk, int64_t head, ChunkFactors& factors) {
  double total = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (i < chunk.count) total += bounded(layer.log_decay[(chunk.first + i) * layer.heads + head]);
    factors.high[i] = static_cast<float>(total);
    factors.low[i] = static_cast<float>(total - factors.high[i]);
  }
  const float high = factors.high[kChunk - 1], low = factors.low[kChunk - 1];
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    vf a = load(factors.high + i), rest = load(factors.low + i);
    store(factors.since + i, exp(a + rest));
    store(factors.until + i, exp((high - a) + (low - rest)));
  }
}

// M[i][j] = G[i][j] e^{a_i - a_j} for j ≤ i, 0 for the columns after that a tile with row i may read.
void mix(const float* scores, const ChunkFactors& factors, int64_t count, float* mixing) {
  for (int64_t i = 0; i < count; ++i) {
    const vf high = splat(factors.high[i]), low = splat(factors.low[i]);
    const int64_t read = std::min(count, i / kTileRows * kTileRows + kTileRows);
    for (int64_t j = 0; j < read; j += kLanes) {
      vf values = splat(0);
      if (j <= i) {
        vf difference = (high - load(factors.high + j)) + (low - load(factors.low + j));
        values = load(scores + i * kChunk + j) * exp(vmin(difference, splat(0)));
        if (j + kLanes > i + 1) values = kLaneNumbers <= static_cast<int32_t>(i - j) ? values : splat(0);
      }
      store(mixing + i * kChunk + j, values);
    }
  }
}

// The rows of a run for the columns first … first+count-1 of a head: chunk after chunk, the state transposed (S, W) in
// scratch.
template <int kVectors>
void scan_panel(
    const Recurrence& layer, const Run& run, const ChunkScores* chunks, int64_t num_chunks, const float* scores,
    int64_t head, int64_t first, int64_t count, float* scratch) {
  constexpr int64_t kColumns = kVectors * kLanes;
  const int64_t size = layer.size, group = head / (layer.heads / layer.groups);
  float *state = scratch, *entering = state + size * kColumns, *mixing = entering + kChunk * kColumns;
  float *x_before = mixing + kChunk * kChunk, *b_before = x_before + kColumns, *copy = b_before + size;
  ChunkFactors factors;
  const int64_t slot = run.slot * layer.heads + head, at = (slot * layer.width + first) * size;
  float* stored = layer.state.open(at, count * size, run.fresh, copy);
  std::fill(state, state + size * kColumns, 0.0f);
  if (!run.fresh) {
    transpose_matrix(stored, size, state, kColumns, count, size);
    if (layer.later) {
      const float later = layer.later[run.start * layer.heads + head];
      layer.x_before.read(slot * layer.width + first, count, x_before);
      layer.b_before.read(slot * size, size, b_before);
      for (int64_t n = 0; n < size; ++n)
        for (int64_t p = 0; p < count; ++p) state[n * kColumns + p] += later * x_before[p] * b_before[n];
    }
  }
  for (int64_t number = 0; number < num_chunks; ++number) {
    const ChunkScores& chunk = chunks[number];
    const float* x = layer.x + chunk.first * layer.x_stride + head * layer.width + first;
    const float* b = layer.b + chunk.first * layer.bc_stride + group * size;
    const float* c = layer.c + chunk.first * layer.bc_stride + group * size;
    fill_factors(layer, chunk, head, factors);
    mix(scores + chunk.offset + group * kChunk * kChunk, factors, chunk.count, mixing);
    for (int64_t i = 0; i < chunk.count; ++i) {
      const float enter = layer.enter[(chunk.first + i) * layer.heads + head];
      float* to = entering + i * kColumns;
      if (count < kColumns) std::fill(to + count / kLanes * kLanes, to + kColumns, 0.0f);
      by_lanes(
          count, [&](int64_t p, int64_t left) { store(to + p, load_some(x + i * layer.x_stride + p, left) * enter); });
    }
    for (int64_t i = 0; i < chunk.count; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, chunk.count - i);
      with_constant<kTileRows>(rows, [&](auto rows_) {
        Tile<rows_.value, kVectors> tile;
        tile.multiply(c + i * layer.bc_stride, layer.bc_stride, 1, state, kColumns, size);
        tile.scale_rows(factors.since + i);
        tile.multiply(mixing + i * kChunk, kChunk, 1, entering, kColumns, i + rows);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t row = chunk.first + i + r;
          const float skip = layer.skip[row * layer.skip_stride + head];
          float* out = layer.out + (row * layer.heads + head) * layer.width + first;
          by_lanes(count, [&](int64_t p, int64_t left) {
            vf own = load_some(x + (i + r) * layer.x_stride + p, left) * skip;
            store_some(out + p, tile.values[r][p / kLanes] + own, left);
          });
        }
      });
    }
    for (int64_t i = 0; i < chunk.count; ++i)
      for (int64_t p = 0; p < kColumns; p += kLanes)
        store(entering + i * kColumns + p, load(entering + i * kColumns + p) * factors.until[i]);
    const float whole = factors.since[chunk.count - 1];
    for (int64_t n = 0; n < size; n += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, size - n);
      with_constant<kTileRows>(rows, [&](auto rows_) {
        Tile<rows_.value, kVectors> tile;
        tile.read(state + n * kColumns, kColumns, whole);
        tile.multiply(b + n, 1, layer.bc_stride, entering, kColumns, chunk.count);
        tile.write(state + n * kColumns, kColumns);
      });
    }
  }
  transpose_matrix(state, kColumns, stored, size, size, count);
  layer.state.close(at, count * size, stored);
}

void scan(const Recurrence& layer, const std::vector<Run>& runs, const std::vector<int64_t>& long_runs) {
  std::vector<ChunkScores> chunks;
  std::vector<int64_t> first_chunk;  // of each long run, and the end
  for (int64_t index : long_runs) {
    first_chunk.push_back(chunks.size());
    const Run& run = runs[index];
    for (int64_t at = 0; at < run.count; at += kChunk)
      chunks.push_back(
          {index, run.start + at, std::min(kChunk, run.count - at),
           static_cast<int64_t>(chunks.size()) * layer.groups * kChunk * kChunk});
  }
  first_chunk.push_back(chunks.size());
  at::Tensor scores = at::empty({static_cast<int64_t>(chunks.size()) * layer.groups * kChunk * kChunk}, at::kFloat);
  float* all = scores.data_ptr<float>();
  parallel_for(0, chunks.size() * layer.groups, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(layer.size * kChunk);
    for (int64_t task = begin; task < end; ++task) {
      const ChunkScores& chunk = chunks[task / layer.groups];
      const int64_t group = task % layer.groups;
      score(layer, chunk, group, scratch.begin(), all + chunk.offset + group * kChunk * kChunk);
    }
  });
  const int64_t panels = (layer.width + kPanel - 1) / kPanel, each = layer.heads * panels;
  parallel_for(0, long_runs.size() * each, 1, [&](int64_t begin, int64_t end) {
    const int64_t before = kPanel + layer.size, copy = layer.state.scratch_for(kPanel * layer.size);
    Scratch scratch((layer.size + kChunk) * kPanel + kChunk * kChunk + before + copy);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t number = task / each, head = task % each / panels, first = task % panels * kPanel;
      const int64_t count = std::min(kPanel, layer.width - first), from = first_chunk[number];
      with_constant<kTileVectors>((count + kLanes - 1) / kLanes, [&](auto vectors) {
        scan_panel<vectors.value>(
            layer, runs[long_runs[number]], chunks.data() + from, first_chunk[number + 1] - from, all, head, first,
            count, scratch.begin());
      });
    }
  });
}

// The last token of each run, which enters the state once more at the next (Mamba-3).
void remember(const Recurrence& layer, const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    const int64_t last = run.start + run.count - 1, heads = layer.heads;
    const int64_t x_width = heads * layer.width, b_width = heads * layer.size;
    layer.x_before.write(run.slot * x_width, x_width, layer.x + last * layer.x_stride);
    layer.b_before.write(run.slot * b_width, b_width, layer.b + last * layer.bc_stride);
  }
}

}  // namespace

void recur(const Recurrence& layer, const std::vector<Run>& runs) {
  std::vector<int64_t> single, several;
  for (size_t i = 0; i < runs.size(); ++i) (runs[i].count == 1 ? single : several).push_back(i);
  if (!single.empty()) {
    const int64_t grain = std::max<int64_t>(1, kGrainState / std::max<int64_t>(1, layer.width * layer.size));
    const int64_t wide = Scratch::padded(layer.width), tall = Scratch::padded(layer.size);
    parallel_for(0, single.size() * layer.heads, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(3 * (wide + tall) + layer.state.scratch_for(layer.width * layer.size));
      for (int64_t task = begin; task < end; ++task)
        step(layer, runs[single[task / layer.heads]], task % layer.heads, scratch.begin());
    });
  }
  if (!several.empty()) scan(layer, runs, several);
  if (layer.later) remember(layer, runs);
}

}  // namespace blazr
