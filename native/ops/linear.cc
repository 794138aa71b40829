#include "ops/linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ellm {
namespace {

// A core's L2 (2 MB on the reference machine, 1 MB on older servers) holds a pass of activations, a
// group of weight tiles, and the results on their way out.
constexpr int64_t kActivationCacheBytes = 768 << 10;
constexpr int64_t kWeightCacheBytes = 256 << 10;

// Where a matrix's input rows are: a slot, or the head's own scratch.
struct Input {
  const float* values;
  int64_t stride;
  const uint8_t* quantized;
  int64_t quantized_stride;
};

Input input_of(const SlotMemory& slot) {
  return {slot.values, slot.width, slot.quantized, QuantizedRows::bytes_per_row(slot.width)};
}

int64_t rows_per_pass(const Matrix& matrix) {
  const int64_t row_bytes = matrix.format->integer_codes ? QuantizedRows::bytes_per_row(matrix.cols)
                                                         : matrix.cols * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(kActivationCacheBytes / row_bytes / kMaxLinearRows, 1) * kMaxLinearRows;
}

// out[t * stride + lane] for rows [first, first + rows) and one tile, without bias.
void multiply_tile(const Matrix& matrix, int64_t tile, const Input& input, int64_t first, int rows,
                   float* out, int64_t stride) {
  const LinearArgs args = {
      matrix.tile(tile),
      matrix.cols,
      {input.quantized + first * input.quantized_stride, input.quantized_stride, matrix.cols},
      input.values + first * input.stride,
      input.stride,
      rows,
      out,
      stride};
  matrix.linear(args);
}

void add_bias(const Matrix& matrix, int64_t tile, int rows, int lanes, float* out, int64_t stride) {
  if (matrix.bias.empty()) return;
  const float* bias = matrix.bias.data() + tile * kTileRows;
  for (int t = 0; t < rows; ++t) {
    for (int lane = 0; lane < lanes; ++lane) out[t * stride + lane] += bias[lane];
  }
}

int lanes_of(const Matrix& matrix, int64_t tile) {
  return static_cast<int>(std::min<int64_t>(matrix.rows - tile * kTileRows, kTileRows));
}

// Calls body(unit, first row, rows) over this thread's units of a matrix's tiles (of `unit_bytes`
// weights each). Two levels of blocking: a pass of activations stays in L2, and so does a group of
// units, while the few rows of one call stay in L1 across the group.
template <class Body>
void for_each_unit(const Matrix& matrix, int64_t unit_bytes, int64_t total_rows, Share units, Body body) {
  const int64_t pass_rows = rows_per_pass(matrix);
  const int64_t group_units = std::max<int64_t>(kWeightCacheBytes / unit_bytes, 1);
  for (int64_t pass = 0; pass < total_rows; pass += pass_rows) {
    const int64_t pass_end = std::min(pass + pass_rows, total_rows);
    for (int64_t group = units.begin; group < units.end; group += group_units) {
      const int64_t group_end = std::min(group + group_units, units.end);
      for (int64_t t = pass; t < pass_end; t += kMaxLinearRows) {
        const int rows = static_cast<int>(std::min<int64_t>(pass_end - t, kMaxLinearRows));
        for (int64_t unit = group; unit < group_end; ++unit) body(unit, t, rows);
      }
    }
  }
}

// Writes matrix @ input + bias to columns [0, matrix.rows) of `out`.
void multiply(const Matrix& matrix, const Input& input, int64_t total_rows, Share tiles, float* out,
              int64_t stride) {
  for_each_unit(matrix, matrix.tile_bytes, total_rows, tiles, [&](int64_t tile, int64_t first, int rows) {
    const int lanes = lanes_of(matrix, tile);
    float* target = out + first * stride + tile * kTileRows;
    if (lanes == kTileRows) {
      multiply_tile(matrix, tile, input, first, rows, target, stride);
    } else {
      float padded[kMaxLinearRows * kTileRows];
      multiply_tile(matrix, tile, input, first, rows, padded, kTileRows);
      for (int t = 0; t < rows; ++t) {
        std::memcpy(target + t * stride, padded + t * kTileRows, static_cast<size_t>(lanes) * sizeof(float));
      }
    }
    add_bias(matrix, tile, rows, lanes, target, stride);
  });
}

class LinearOp : public Op {
 public:
  LinearOp(int x, std::vector<Matrix> parts, int out) : x_(x), parts_(std::move(parts)), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    int64_t column = 0;
    for (const Matrix& part : parts_) {
      const Share tiles = share_of(part.num_tiles(), rank, machine.pool->size());
      multiply(part, input, step.rows, tiles, out.values + column, out.width);
      column += part.rows;
    }
    if (!out.has_quantized) return;
    machine.pool->barrier();
    const Share rows = share_of(step.rows, rank, machine.pool->size());
    for (int64_t t = rows.begin; t < rows.end; ++t) quantize_slot(machine, out, t, 0, out.width);
  }

 private:
  int x_;
  std::vector<Matrix> parts_;
  int out_;
};

class LinearAddOp : public Op {
 public:
  LinearAddOp(int x, Matrix matrix, int residual) : x_(x), matrix_(std::move(matrix)), residual_(residual) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& residual = machine.slots[static_cast<size_t>(residual_)];
    const Share tiles = share_of(matrix_.num_tiles(), rank, machine.pool->size());
    for_each_unit(matrix_, matrix_.tile_bytes, step.rows, tiles, [&](int64_t tile, int64_t first, int rows) {
      const int lanes = lanes_of(matrix_, tile);
      float product[kMaxLinearRows * kTileRows];
      multiply_tile(matrix_, tile, input, first, rows, product, kTileRows);
      add_bias(matrix_, tile, rows, lanes, product, kTileRows);
      for (int t = 0; t < rows; ++t) {
        float* target = residual.row(first + t) + tile * kTileRows;
        for (int lane = 0; lane < lanes; ++lane) target[lane] += product[t * kTileRows + lane];
      }
    });
  }

 private:
  int x_;
  Matrix matrix_;
  int residual_;
};

// Two tiles at a time: 32 columns are one group of the quantised output.
class GatedLinearOp : public Op {
 public:
  GatedLinearOp(int x, Matrix gate, Matrix up, Activation activation, int out)
      : x_(x), gate_(std::move(gate)), up_(std::move(up)), activation_(activation), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    const auto activate =
        activation_ == Activation::kSilu ? machine.kernels->gated_silu : machine.kernels->gated_gelu;
    const Share pairs = share_of((gate_.num_tiles() + 1) / 2, rank, machine.pool->size());
    for_each_unit(gate_, 2 * (gate_.tile_bytes + up_.tile_bytes), step.rows, pairs,
                  [&](int64_t pair, int64_t first, int rows) {
                    float gate[kMaxLinearRows * kGroup];
                    float up[kMaxLinearRows * kGroup];
                    const int64_t column = pair * kGroup;
                    const int64_t columns = std::min<int64_t>(gate_.rows - column, kGroup);
                    for (int64_t tile = 2 * pair; tile < std::min(2 * pair + 2, gate_.num_tiles()); ++tile) {
                      const int64_t offset = tile % 2 * kTileRows;
                      multiply_tile(gate_, tile, input, first, rows, gate + offset, kGroup);
                      add_bias(gate_, tile, rows, lanes_of(gate_, tile), gate + offset, kGroup);
                      multiply_tile(up_, tile, input, first, rows, up + offset, kGroup);
                      add_bias(up_, tile, rows, lanes_of(up_, tile), up + offset, kGroup);
                    }
                    for (int t = 0; t < rows; ++t) {
                      activate(gate + t * kGroup, up + t * kGroup, columns, out.row(first + t) + column);
                      if (out.has_quantized) quantize_slot(machine, out, first + t, column, kGroup);
                    }
                  });
  }

 private:
  int x_;
  Matrix gate_;
  Matrix up_;
  Activation activation_;
  int out_;
};

class HeadOp : public Op {
 public:
  HeadOp(int x, std::vector<float> norm, float epsilon, Matrix matrix)
      : x_(x), norm_(std::move(norm)), epsilon_(epsilon), matrix_(std::move(matrix)) {}

  int64_t scratch_bytes(const Machine& machine) const override {
    return machine.max_rows *
           (matrix_.cols * static_cast<int64_t>(sizeof(float)) + QuantizedRows::bytes_per_row(matrix_.cols));
  }
  void set_scratch(uint8_t* scratch) override { scratch_ = scratch; }

  void run(Machine& machine, const Step& step, int rank) override {
    if (step.num_logits == 0) return;
    const SlotMemory& x = machine.slots[static_cast<size_t>(x_)];
    SlotMemory normed;
    normed.width = matrix_.cols;
    normed.values = reinterpret_cast<float*>(scratch_);
    normed.quantized = scratch_ + machine.max_rows * matrix_.cols * static_cast<int64_t>(sizeof(float));
    const Share rows = share_of(step.num_logits, rank, machine.pool->size());
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      machine.kernels->rms_norm(x.row(step.logits_rows[i]), norm_.data(), matrix_.cols, epsilon_,
                                normed.row(i));
      if (matrix_.format->integer_codes) quantize_slot(machine, normed, i, 0, matrix_.cols);
    }
    machine.pool->barrier();
    const Share tiles = share_of(matrix_.num_tiles(), rank, machine.pool->size());
    multiply(matrix_, input_of(normed), step.num_logits, tiles, step.logits, matrix_.rows);
  }

 private:
  int x_;
  std::vector<float> norm_;
  float epsilon_;
  Matrix matrix_;
  uint8_t* scratch_ = nullptr;
};

}  // namespace

void quantize_slot(const Machine& machine, const SlotMemory& slot, int64_t row, int64_t first,
                   int64_t count) {
  machine.kernels->quantize_groups(slot.row(row), slot.width, first / kGroup, count / kGroup,
                                   slot.quantized_row(row));
}

std::unique_ptr<Op> make_linear(int x, std::vector<Matrix> parts, int out) {
  return std::make_unique<LinearOp>(x, std::move(parts), out);
}
std::unique_ptr<Op> make_linear_add(int x, Matrix matrix, int residual) {
  return std::make_unique<LinearAddOp>(x, std::move(matrix), residual);
}
std::unique_ptr<Op> make_gated_linear(int x, Matrix gate, Matrix up, Activation activation, int out) {
  return std::make_unique<GatedLinearOp>(x, std::move(gate), std::move(up), activation, out);
}
std::unique_ptr<Op> make_head(int x, std::vector<float> norm, float epsilon, Matrix matrix) {
  return std::make_unique<HeadOp>(x, std::move(norm), epsilon, std::move(matrix));
}

}  // namespace ellm
