#include "ops/rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ellm {
namespace {

class EmbedOp : public Op {
 public:
  EmbedOp(Matrix matrix, float scale, int out) : matrix_(std::move(matrix)), scale_(scale), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    const Share rows = share_of(step.rows, rank, machine.pool->size());
    for (int64_t t = rows.begin; t < rows.end; ++t) {
      const int32_t token = step.tokens[t];
      float* row = out.row(t);
      matrix_.format->decode_row(matrix_.tile(token / kTileRows), token % kTileRows, matrix_.cols, row);
      if (scale_ == 1.0f) continue;
      for (int64_t i = 0; i < matrix_.cols; ++i) row[i] *= scale_;
    }
  }

 private:
  Matrix matrix_;
  float scale_;
  int out_;
};

class RmsNormOp : public Op {
 public:
  RmsNormOp(int x, std::vector<float> weight, float epsilon, int out)
      : x_(x), weight_(std::move(weight)), epsilon_(epsilon), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const SlotMemory& x = machine.slots[static_cast<size_t>(x_)];
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    const Share rows = share_of(step.rows, rank, machine.pool->size());
    for (int64_t t = rows.begin; t < rows.end; ++t) {
      machine.kernels->rms_norm(x.row(t), weight_.data(), x.width, epsilon_, out.row(t));
      if (out.has_quantized) quantize_slot(machine, out, t, 0, out.width);
    }
  }

 private:
  int x_;
  std::vector<float> weight_;
  float epsilon_;
  int out_;
};

class RmsNormAddOp : public Op {
 public:
  RmsNormAddOp(int x, std::vector<float> weight, float epsilon, int residual)
      : x_(x), weight_(std::move(weight)), epsilon_(epsilon), residual_(residual) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const SlotMemory& x = machine.slots[static_cast<size_t>(x_)];
    const SlotMemory& residual = machine.slots[static_cast<size_t>(residual_)];
    const Share rows = share_of(step.rows, rank, machine.pool->size());
    for (int64_t t = rows.begin; t < rows.end; ++t) {
      float* normed = x.row(t);
      machine.kernels->rms_norm(normed, weight_.data(), x.width, epsilon_, normed);
      float* target = residual.row(t);
      for (int64_t i = 0; i < x.width; ++i) target[i] += normed[i];
    }
  }

 private:
  int x_;
  std::vector<float> weight_;
  float epsilon_;
  int residual_;
};

class RopeAppendOp : public Op {
 public:
  explicit RopeAppendOp(RopeAppendSpec spec) : spec_(std::move(spec)) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const int heads = spec_.num_heads + spec_.num_kv_heads;
    for (const RowRun& rows : *step.runs) {
      const Share items = share_of(static_cast<int64_t>(rows.count) * heads, rank, machine.pool->size());
      for (int64_t item = items.begin; item < items.end; ++item) {
        treat_head(machine, rows, static_cast<int32_t>(item / heads), static_cast<int>(item % heads));
      }
    }
    if (machine.kv->shape().type != KvType::kInt8) return;
    machine.pool->barrier();
    for (const RowRun& rows : *step.runs) store_full_blocks(machine, rows, rank);
  }

 private:
  // Head `head` of the queries, or past them of the keys, of row `index` of the run.
  void treat_head(Machine& machine, const RowRun& rows, int32_t index, int head) const {
    const KernelTable& kernels = *machine.kernels;
    const int dim = spec_.head_dim;
    const int32_t position = rows.start + index;
    float* row = machine.slots[static_cast<size_t>(spec_.qkv)].row(rows.first_row + index);
    float* values = row + static_cast<int64_t>(head) * dim;
    const bool is_key = head >= spec_.num_heads;
    const std::vector<float>& norm = is_key ? spec_.k_norm : spec_.q_norm;
    if (!norm.empty()) kernels.rms_norm(values, norm.data(), dim, spec_.epsilon, values);
    const RopeTable& table = *spec_.table;
    const auto rotate = table.interleaved() ? kernels.rope_interleaved : kernels.rope_halves;
    rotate(values, 2 * table.half(), table.cosine(position), table.sine(position));
    if (!is_key) return;
    const int kv_head = head - spec_.num_heads;
    const float* v = row + static_cast<int64_t>(spec_.num_heads + spec_.num_kv_heads + kv_head) * dim;
    const int32_t block = rows.blocks[position / kBlockTokens];
    const int token = position % kBlockTokens;
    const KvStore& kv = *machine.kv;
    switch (kv.shape().type) {
      case KvType::kF32:
        kernels.append_f32(values, v, token, dim, kv.keys(spec_.layer, kv_head, block),
                           kv.values(spec_.layer, kv_head, block));
        break;
      case KvType::kF16:
        kernels.append_f16(values, v, token, dim, kv.keys(spec_.layer, kv_head, block),
                           kv.values(spec_.layer, kv_head, block));
        break;
      case KvType::kInt8:
        kernels.append_f32(values, v, token, dim, kv.float_keys(spec_.layer, kv_head, block),
                           kv.float_values(spec_.layer, kv_head, block));
        break;
    }
  }

  // Stores the blocks whose last token is among the rows.
  void store_full_blocks(const Machine& machine, const RowRun& rows, int rank) const {
    const KvStore& kv = *machine.kv;
    const int32_t first = rows.start / kBlockTokens;
    const int32_t full = (rows.start + rows.count) / kBlockTokens - first;
    const Share items = share_of(int64_t{full} * spec_.num_kv_heads, rank, machine.pool->size());
    for (int64_t item = items.begin; item < items.end; ++item) {
      const int32_t block = rows.blocks[first + item / spec_.num_kv_heads];
      const int head = static_cast<int>(item % spec_.num_kv_heads);
      machine.kernels->store_int8(kv.float_keys(spec_.layer, head, block),
                                  kv.float_values(spec_.layer, head, block), spec_.head_dim,
                                  kv.keys(spec_.layer, head, block));
    }
  }

  RopeAppendSpec spec_;
};

}  // namespace

RopeTable::RopeTable(std::vector<double> inverse_frequencies, double magnitude, bool interleaved,
                     int64_t positions)
    : inverse_frequencies_(std::move(inverse_frequencies)),
      magnitude_(magnitude),
      interleaved_(interleaved),
      positions_(positions),
      pages_(inverse_frequencies_.size() * 2 * sizeof(float) * static_cast<size_t>(positions)) {}

void RopeTable::fill(int64_t positions) {
  // Some ahead, so that decoding does not come back for every token.
  constexpr int64_t kAhead = 256;
  if (positions <= filled_) return;
  const int64_t end = std::min(positions + kAhead, positions_);
  for (; filled_ < end; ++filled_) {
    float* row = values() + filled_ * 2 * half();
    for (int64_t i = 0; i < half(); ++i) {
      const double angle = static_cast<double>(filled_) * inverse_frequencies_[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle) * magnitude_);
      row[half() + i] = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
}

std::unique_ptr<Op> make_embed(Matrix matrix, float scale, int out) {
  return std::make_unique<EmbedOp>(std::move(matrix), scale, out);
}
std::unique_ptr<Op> make_rms_norm(int x, std::vector<float> weight, float epsilon, int out) {
  return std::make_unique<RmsNormOp>(x, std::move(weight), epsilon, out);
}
std::unique_ptr<Op> make_rms_norm_add(int x, std::vector<float> weight, float epsilon, int residual) {
  return std::make_unique<RmsNormAddOp>(x, std::move(weight), epsilon, residual);
}
std::unique_ptr<Op> make_rope_append(RopeAppendSpec spec) {
  return std::make_unique<RopeAppendOp>(std::move(spec));
}

}  // namespace ellm
