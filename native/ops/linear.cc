#include "ops/linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ellm {
namespace {

// A core's L2 (512 KB to 2 MB) holds a pass of activations and a group of weight tiles, or a group of
// expanded tiles, and the results on their way out.
constexpr int64_t kActivationCacheBytes = 768 << 10;
constexpr int64_t kWeightCacheBytes = 256 << 10;
// From here on the work of expanding a tile is shared by enough rows.
constexpr int64_t kExpandFromRows = 16;

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

// A tile as the kernel reads it: packed, or expanded in a thread's scratch.
struct TileRef {
  const Matrix* matrix;
  int64_t index;
  const uint8_t* data;
  LinearTile linear;
};

TileRef packed(const Matrix& matrix, int64_t tile) {
  return {&matrix, tile, matrix.tile(tile), matrix.kernels->packed};
}

// The same on every ISA, so that memory can be counted without knowing which runs.
int64_t expanded_bytes(const Matrix& matrix) {
  return matrix.format->integer_codes ? matrix.cols / kGroup * kExpandedGroupBytes : 0;
}

// out[t * stride + lane] for rows [first, first + rows) and one tile, without bias.
void multiply_tile(const TileRef& tile, const Input& input, int64_t first, int rows, float* out,
                   int64_t stride) {
  const int64_t cols = tile.matrix->cols;
  tile.linear({tile.data,
               cols,
               {input.quantized + first * input.quantized_stride, input.quantized_stride, cols},
               input.values + first * input.stride,
               input.stride,
               rows,
               out,
               stride});
}

void add_bias(const TileRef& tile, int rows, int lanes, float* out, int64_t stride) {
  if (tile.matrix->bias.empty()) return;
  const float* bias = tile.matrix->bias.data() + tile.index * kTileRows;
  for (int t = 0; t < rows; ++t) {
    for (int lane = 0; lane < lanes; ++lane) out[t * stride + lane] += bias[lane];
  }
}

int lanes_of(const TileRef& tile) {
  return static_cast<int>(std::min<int64_t>(tile.matrix->rows - tile.index * kTileRows, kTileRows));
}

// A unit of work: the tiles that one call of a body needs together, of matrices of one width.
struct Unit {
  static constexpr int kMaxTiles = 4;
  TileRef tiles[kMaxTiles];
  int count = 0;

  void add(const Matrix& matrix, int64_t tile) { tiles[count++] = packed(matrix, tile); }
};

// Units whose tiles, `tiles` each and as wide as `matrix`, are expanded together; and their bytes.
int64_t expanded_group_units(const Matrix& matrix, int tiles) {
  return std::max<int64_t>(kWeightCacheBytes / (tiles * std::max<int64_t>(expanded_bytes(matrix), 1)), 1);
}
int64_t expanded_group_bytes(const Matrix& matrix, int tiles) {
  return expanded_group_units(matrix, tiles) * tiles * expanded_bytes(matrix);
}

// Calls body(unit index, unit, first row, rows) for every unit of this thread, `unit_at(index)`, and all
// rows. Few rows, or a kernel without an expanded form: two levels of blocking, a pass of activations
// stays in L2, and so does a group of units, while the few rows of one call stay in L1 across the group.
// Many rows: a group of units is expanded into `scratch`, then meets all rows.
template <class UnitAt, class Body>
void for_each_unit(const Matrix& matrix, int tiles, int64_t total_rows, Share units, uint8_t* scratch,
                   UnitAt unit_at, Body body) {
  const bool expands = total_rows >= kExpandFromRows && matrix.kernels->expand != nullptr;
  const int64_t pass_rows = expands ? total_rows : rows_per_pass(matrix);
  const int64_t group_units = expands ? expanded_group_units(matrix, tiles)
                                      : std::max<int64_t>(kWeightCacheBytes / (tiles * matrix.tile_bytes), 1);
  for (int64_t pass = 0; pass < total_rows; pass += pass_rows) {
    const int64_t pass_end = std::min(pass + pass_rows, total_rows);
    for (int64_t group = units.begin; group < units.end; group += group_units) {
      const int64_t group_end = std::min(group + group_units, units.end);
      const auto place = [&](int64_t index, int tile) {
        return scratch + ((index - group) * tiles + tile) * expanded_bytes(matrix);
      };
      for (int64_t index = group; expands && index < group_end; ++index) {
        const Unit unit = unit_at(index);
        for (int i = 0; i < unit.count; ++i) {
          const TileRef& tile = unit.tiles[i];
          if (tile.matrix->kernels->expand == nullptr) continue;
          tile.matrix->kernels->expand(tile.data, matrix.cols, place(index, i));
        }
      }
      for (int64_t t = pass; t < pass_end; t += kMaxLinearRows) {
        const int rows = static_cast<int>(std::min<int64_t>(pass_end - t, kMaxLinearRows));
        for (int64_t index = group; index < group_end; ++index) {
          Unit unit = unit_at(index);
          for (int i = 0; expands && i < unit.count; ++i) {
            TileRef& tile = unit.tiles[i];
            if (tile.matrix->kernels->expand == nullptr) continue;
            tile.data = place(index, i);
            tile.linear = tile.matrix->kernels->expanded;
          }
          body(index, unit, t, rows);
        }
      }
    }
  }
}

Unit single(const Matrix& matrix, int64_t tile) {
  Unit unit;
  unit.add(matrix, tile);
  return unit;
}

// Writes matrix @ input + bias to the columns of `out` that belong to the tiles `unit_at` names for [tiles).
template <class UnitAt>
void multiply(const Matrix& matrix, const Input& input, int64_t total_rows, Share tiles, uint8_t* scratch,
              UnitAt unit_at, float* out, int64_t stride) {
  for_each_unit(matrix, 1, total_rows, tiles, scratch, unit_at,
                [&](int64_t, const Unit& unit, int64_t first, int rows) {
                  const TileRef& tile = unit.tiles[0];
                  const int lanes = lanes_of(tile);
                  float* target = out + first * stride + tile.index * kTileRows;
                  if (lanes == kTileRows) {
                    multiply_tile(tile, input, first, rows, target, stride);
                  } else {
                    float padded[kMaxLinearRows * kTileRows];
                    multiply_tile(tile, input, first, rows, padded, kTileRows);
                    for (int t = 0; t < rows; ++t) {
                      std::memcpy(target + t * stride, padded + t * kTileRows,
                                  static_cast<size_t>(lanes) * sizeof(float));
                    }
                  }
                  add_bias(tile, rows, lanes, target, stride);
                });
}

// Scratch for expanded tiles, a part of it for each thread.
class ExpandingOp : public Op {
 public:
  int64_t scratch_bytes(const Machine& machine) const override {
    return machine.pool->size() * expanded_scratch_bytes();
  }
  void set_scratch(uint8_t* scratch) override { scratch_ = scratch; }

 protected:
  virtual int64_t expanded_scratch_bytes() const = 0;
  uint8_t* scratch(int rank) const { return scratch_ + rank * expanded_scratch_bytes(); }

 private:
  uint8_t* scratch_ = nullptr;
};

class LinearOp : public ExpandingOp {
 public:
  LinearOp(int x, std::vector<Matrix> parts, int out) : x_(x), parts_(std::move(parts)), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    int64_t column = 0;
    for (const Matrix& part : parts_) {
      const Share tiles = share_of(part.num_tiles(), rank, machine.pool->size());
      const auto unit_at = [&](int64_t tile) { return single(part, tile); };
      multiply(part, input, step.rows, tiles, scratch(rank), unit_at, out.values + column, out.width);
      column += part.rows;
    }
    if (!out.has_quantized) return;
    machine.pool->barrier();
    const Share rows = share_of(step.rows, rank, machine.pool->size());
    for (int64_t t = rows.begin; t < rows.end; ++t) quantize_slot(machine, out, t, 0, out.width);
  }

 private:
  int64_t expanded_scratch_bytes() const override {
    int64_t bytes = 0;
    for (const Matrix& part : parts_) bytes = std::max(bytes, expanded_group_bytes(part, 1));
    return bytes;
  }

  int x_;
  std::vector<Matrix> parts_;
  int out_;
};

class LinearAddOp : public ExpandingOp {
 public:
  LinearAddOp(int x, Matrix matrix, int residual) : x_(x), matrix_(std::move(matrix)), residual_(residual) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& residual = machine.slots[static_cast<size_t>(residual_)];
    const Share tiles = share_of(matrix_.num_tiles(), rank, machine.pool->size());
    const auto unit_at = [&](int64_t tile) { return single(matrix_, tile); };
    for_each_unit(matrix_, 1, step.rows, tiles, scratch(rank), unit_at,
                  [&](int64_t index, const Unit& unit, int64_t first, int rows) {
                    const TileRef& tile = unit.tiles[0];
                    const int lanes = lanes_of(tile);
                    float product[kMaxLinearRows * kTileRows];
                    multiply_tile(tile, input, first, rows, product, kTileRows);
                    add_bias(tile, rows, lanes, product, kTileRows);
                    for (int t = 0; t < rows; ++t) {
                      float* target = residual.row(first + t) + index * kTileRows;
                      for (int lane = 0; lane < lanes; ++lane) target[lane] += product[t * kTileRows + lane];
                    }
                  });
  }

 private:
  int64_t expanded_scratch_bytes() const override { return expanded_group_bytes(matrix_, 1); }

  int x_;
  Matrix matrix_;
  int residual_;
};

// Two tiles at a time: 32 columns are one group of the quantised output.
class GatedLinearOp : public ExpandingOp {
 public:
  GatedLinearOp(int x, Matrix gate, Matrix up, Activation activation, int out)
      : x_(x), gate_(std::move(gate)), up_(std::move(up)), activation_(activation), out_(out) {}

  void run(Machine& machine, const Step& step, int rank) override {
    const Input input = input_of(machine.slots[static_cast<size_t>(x_)]);
    const SlotMemory& out = machine.slots[static_cast<size_t>(out_)];
    const auto activate =
        activation_ == Activation::kSilu ? machine.kernels->gated_silu : machine.kernels->gated_gelu;
    const Share pairs = share_of((gate_.num_tiles() + 1) / 2, rank, machine.pool->size());
    const auto unit_at = [&](int64_t pair) {
      Unit unit;
      for (int64_t tile = 2 * pair; tile < std::min(2 * pair + 2, gate_.num_tiles()); ++tile) {
        unit.add(gate_, tile);
        unit.add(up_, tile);
      }
      return unit;
    };
    for_each_unit(gate_, Unit::kMaxTiles, step.rows, pairs, scratch(rank), unit_at,
                  [&](int64_t pair, const Unit& unit, int64_t first, int rows) {
                    float gate[kMaxLinearRows * kGroup];
                    float up[kMaxLinearRows * kGroup];
                    const int64_t column = pair * kGroup;
                    const int64_t columns = std::min<int64_t>(gate_.rows - column, kGroup);
                    for (int i = 0; i < unit.count; ++i) {
                      const TileRef& tile = unit.tiles[i];
                      float* const target = (i % 2 == 0 ? gate : up) + tile.index % 2 * kTileRows;
                      multiply_tile(tile, input, first, rows, target, kGroup);
                      add_bias(tile, rows, lanes_of(tile), target, kGroup);
                    }
                    for (int t = 0; t < rows; ++t) {
                      activate(gate + t * kGroup, up + t * kGroup, columns, out.row(first + t) + column);
                      if (out.has_quantized) quantize_slot(machine, out, first + t, column, kGroup);
                    }
                  });
  }

 private:
  int64_t expanded_scratch_bytes() const override {
    return std::max(expanded_group_bytes(gate_, Unit::kMaxTiles), expanded_group_bytes(up_, Unit::kMaxTiles));
  }

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
    return normed_bytes(machine) + machine.pool->size() * expanded_group_bytes(matrix_, 1);
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
    const int64_t wanted =
        step.head_tiles ? static_cast<int64_t>(step.head_tiles->size()) : matrix_.num_tiles();
    const Share tiles = share_of(wanted, rank, machine.pool->size());
    uint8_t* const expanded = scratch_ + normed_bytes(machine) + rank * expanded_group_bytes(matrix_, 1);
    const auto unit_at = [&](int64_t index) {
      return single(matrix_, step.head_tiles ? (*step.head_tiles)[static_cast<size_t>(index)] : index);
    };
    multiply(matrix_, input_of(normed), step.num_logits, tiles, expanded, unit_at, step.logits, matrix_.rows);
  }

 private:
  int64_t normed_bytes(const Machine& machine) const {
    return machine.max_rows *
           (matrix_.cols * static_cast<int64_t>(sizeof(float)) + QuantizedRows::bytes_per_row(matrix_.cols));
  }

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
