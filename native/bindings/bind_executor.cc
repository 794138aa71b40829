#include "bindings/bind_executor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "bindings/array_types.h"
#include "bindings/choice.h"
#include "executor/executor.h"

namespace ellm {
namespace {

// A matrix as Python hands it over; the executor keeps `image` alive.
struct Weight {
  std::string format;
  int64_t rows;
  int64_t cols;
  Vector<uint8_t> image;
  std::vector<float> bias;
};

std::vector<float> to_floats(const std::optional<Vector<float>>& values) {
  if (!values) return {};
  return std::vector<float>(values->data(), values->data() + values->size());
}

using PyRuns = std::vector<std::tuple<Vector<int32_t>, int32_t, int32_t, std::optional<PyChoice>>>;
using PyTaps = std::vector<std::tuple<size_t, int, WritableRows>>;

// layers, KV heads, head_dim, type name
using PyKvShape = std::tuple<int, int, int, std::string>;

KvShape to_kv_shape(const PyKvShape& kv) {
  const auto& [layers, heads, head_dim, name] = kv;
  for (const auto& [known, type] :
       {std::pair{"f32", KvType::kF32}, std::pair{"f16", KvType::kF16}, std::pair{"int8", KvType::kInt8}}) {
    if (name == known) return {layers, heads, head_dim, type};
  }
  throw Error(ErrorKind::kConfig, "KV type", "", std::nullopt, name, "f32, f16 or int8");
}

// How long a caller sleeps before it looks at Python's signals.
constexpr std::chrono::milliseconds kSignalPeriod(20);

class PyExecutor {
 public:
  PyExecutor(const std::string& isa, std::vector<int> cpus, int32_t max_rows, int32_t max_positions,
             const PyKvShape& kv, int64_t num_blocks, int64_t vocab_size,
             const std::vector<int64_t>& slot_widths)
      : executor_({choose_isa(isa), std::move(cpus), max_rows, max_positions, to_kv_shape(kv), num_blocks,
                   vocab_size},
                  slot_widths) {}

  void add_embed(const Weight& weight, float scale, int out) {
    executor_.add(make_embed(matrix(weight, std::nullopt, out), scale, out));
  }
  void add_rms_norm(int x, const Vector<float>& weight, float epsilon, int out) {
    executor_.add(make_rms_norm(x, norm(weight, width(x)), epsilon, out));
  }
  void add_rms_norm_add(int x, const Vector<float>& weight, float epsilon, int residual) {
    executor_.add(make_rms_norm_add(x, norm(weight, width(x)), epsilon, residual));
  }
  void add_linear(int x, const std::vector<Weight>& parts, int out) {
    std::vector<Matrix> matrices;
    int64_t columns = 0;
    for (const Weight& part : parts) {
      matrices.push_back(matrix(part, x, std::nullopt));
      columns += part.rows;
    }
    require_size("rows of the parts", static_cast<size_t>(columns), static_cast<size_t>(width(out)));
    executor_.add(make_linear(x, std::move(matrices), out));
  }
  void add_linear_add(int x, const Weight& weight, int residual) {
    require_size("rows of the matrix", static_cast<size_t>(weight.rows),
                 static_cast<size_t>(width(residual)));
    executor_.add(make_linear_add(x, matrix(weight, x, std::nullopt), residual));
  }
  void add_gated_linear(int x, const Weight& gate, const Weight& up, const std::string& activation, int out) {
    require_size("rows of the gate", static_cast<size_t>(gate.rows), static_cast<size_t>(width(out)));
    require_size("rows of up", static_cast<size_t>(up.rows), static_cast<size_t>(width(out)));
    executor_.add(make_gated_linear(x, matrix(gate, x, std::nullopt), matrix(up, x, std::nullopt),
                                    activation == "silu" ? Activation::kSilu : Activation::kGeluTanh, out));
  }
  // Returns the table's index for add_rope_append.
  size_t add_rope_table(const std::vector<double>& inverse_frequencies, double magnitude, bool interleaved) {
    rope_tables_.push_back(executor_.add_rope_table(inverse_frequencies, magnitude, interleaved));
    return rope_tables_.size() - 1;
  }
  void add_rope_append(int qkv, int layer, int num_heads, size_t table,
                       const std::optional<Vector<float>>& q_norm, const std::optional<Vector<float>>& k_norm,
                       float epsilon) {
    const KvShape& kv = executor_.config().kv;
    const int64_t expected = int64_t{num_heads + 2 * kv.num_kv_heads} * kv.head_dim;
    require_size("width of qkv", static_cast<size_t>(width(qkv)), static_cast<size_t>(expected));
    RopeAppendSpec spec = {qkv,
                           layer,
                           num_heads,
                           kv.num_kv_heads,
                           kv.head_dim,
                           rope_tables_.at(table),
                           to_floats(q_norm),
                           to_floats(k_norm),
                           epsilon};
    executor_.add(make_rope_append(std::move(spec)));
  }
  void add_attention(int qkv, int layer, int num_heads, float scale, std::optional<int32_t> window, int out) {
    const KvShape& kv = executor_.config().kv;
    const int64_t expected = int64_t{num_heads} * kv.head_dim;
    require_size("width of attention", static_cast<size_t>(width(out)), static_cast<size_t>(expected));
    if (num_heads_ != 0)
      require_size("query heads", static_cast<size_t>(num_heads), static_cast<size_t>(num_heads_));
    num_heads_ = num_heads;
    executor_.add(make_attention({qkv, layer, num_heads, kv.num_kv_heads, kv.head_dim, scale, window, out,
                                  executor_.config().max_positions},
                                 kv.type));
  }
  void add_head(int x, const Vector<float>& norm_weight, float epsilon, const Weight& weight) {
    require_size("columns of the head", static_cast<size_t>(weight.cols), static_cast<size_t>(width(x)));
    require_size("rows of the head", static_cast<size_t>(weight.rows),
                 static_cast<size_t>(executor_.config().vocab_size));
    executor_.add(
        make_head(x, norm(norm_weight, width(x)), epsilon, matrix(weight, std::nullopt, std::nullopt)));
  }

  void finish() { executor_.finish(); }

  // A step that leaves at op `ops`: `map` of what slot `x` holds there, then the head.
  void add_exit(size_t ops, int x, const Weight& map, const Vector<float>& norm_weight, float epsilon,
                const Weight& head) {
    require_size("columns of the map", static_cast<size_t>(map.cols), static_cast<size_t>(width(x)));
    require_size("rows of the map", static_cast<size_t>(map.rows), static_cast<size_t>(head.cols));
    require_size("rows of the head", static_cast<size_t>(head.rows),
                 static_cast<size_t>(executor_.config().vocab_size));
    if (weight_format(map.format).integer_codes)
      throw Error(ErrorKind::kConfig, "format of the map", "", std::nullopt, map.format, "one of floats");
    std::unique_lock lock(mutex_, std::defer_lock);
    {
      // The step that has the lock may wait for the GIL.
      const nb::gil_scoped_release released;
      lock.lock();
    }
    if (!exit_slot_) exit_slot_ = executor_.add_slot(head.cols);
    std::vector<std::unique_ptr<Op>> own;
    own.push_back(make_linear(x, {view(map)}, *exit_slot_));
    own.push_back(make_head(*exit_slot_, norm(norm_weight, head.cols), epsilon, view(head)));
    executor_.add_exit(ops, std::move(own));
    exit_images_.insert_or_assign(ops, std::pair(map.image, head.image));
  }

  // rows: (blocks, start, count, choice) per sequence; exit: the op to leave at, if not after the last; taps:
  // (op, slot, where its rows go); head_tiles: those of the head that are multiplied, if not all. One step at
  // a time; a second caller waits.
  void step(const Vector<int32_t>& tokens, const PyRuns& rows, const Vector<int32_t>& logits_rows,
            WritableRows logits, std::optional<size_t> exit, const PyTaps& taps,
            const std::optional<Vector<int32_t>>& head_tiles) {
    require_size("rows of logits", logits.shape(0), logits_rows.size());
    require_size("width of logits", logits.shape(1), static_cast<size_t>(executor_.config().vocab_size));
    std::vector<RowRun> runs;
    StepChoices choices(rows.size());
    int32_t first = 0;
    for (const auto& [blocks, start, count, choice] : rows) {
      const int64_t needed = (int64_t{start} + count + kBlockTokens - 1) / kBlockTokens;
      if (static_cast<int64_t>(blocks.size()) < needed)
        require_size("KV blocks of a sequence", blocks.size(), static_cast<size_t>(needed));
      runs.push_back({blocks.data(), start, count, first});
      if (choice) choices.set(*choice, executor_.config().kv, num_heads_, &runs.back());
      first += count;
    }
    std::vector<Tap> taken;
    for (const auto& [op, slot, out] : taps) {
      require_size("rows of a tap", out.shape(0), tokens.size());
      require_size("width of a tap", out.shape(1), static_cast<size_t>(width(slot)));
      taken.push_back({op, slot, out.data()});
    }
    Step step = {tokens.data(),
                 static_cast<int32_t>(tokens.size()),
                 &runs,
                 logits_rows.data(),
                 static_cast<int32_t>(logits_rows.size()),
                 logits.data(),
                 &taken};
    if (head_tiles) step.head_tiles = std::span(head_tiles->data(), head_tiles->size());
    std::unique_lock lock(mutex_, std::defer_lock);
    {
      const nb::gil_scoped_release released;
      lock.lock();
      executor_.start(step, exit);
    }
    wait();
    executor_.finish_step();
    choices.give_back();
  }

  void abort() { executor_.abort(); }
  void forget(const Vector<int32_t>& blocks) {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    executor_.forget({blocks.data(), blocks.size()});
  }
  void read_block(int32_t block, WritableBytes target) {
    require_size("bytes of a KV block", target.size(), block_bytes());
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    executor_.read_block(block, target.data());
  }
  void write_block(int32_t block, const Vector<uint8_t>& source) {
    require_size("bytes of a KV block", source.size(), block_bytes());
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    executor_.write_block(block, source.data());
  }
  std::vector<double> op_seconds() {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    return executor_.op_seconds();
  }
  int64_t arena_bytes() const { return executor_.arena_bytes(); }
  int64_t kv_bytes() const { return executor_.kv_bytes(); }
  int pinned_threads() const { return executor_.pinned_threads(); }

 private:
  size_t block_bytes() const { return static_cast<size_t>(KvStore::block_bytes(executor_.config().kv)); }
  int64_t width(int slot) { return executor_.machine().slots.at(static_cast<size_t>(slot)).width; }

  std::vector<float> norm(const Vector<float>& weight, int64_t size) {
    require_size("size of the norm", weight.size(), static_cast<size_t>(size));
    return std::vector<float>(weight.data(), weight.data() + weight.size());
  }

  // The matrix of a weight, which must live as long.
  Matrix view(const Weight& weight) const {
    const WeightFormat& format = weight_format(weight.format);
    Matrix result = {&format,
                     &linear_for(format, executor_.config().isa),
                     weight.image.data(),
                     format.tile_bytes(weight.cols),
                     weight.rows,
                     weight.cols,
                     weight.bias};
    require_size("bytes of the image", weight.image.size(),
                 static_cast<size_t>(result.num_tiles() * result.tile_bytes));
    if (!weight.bias.empty())
      require_size("size of the bias", weight.bias.size(), static_cast<size_t>(weight.rows));
    return result;
  }

  // A matrix reading slot `x` or writing slot `out`.
  Matrix matrix(const Weight& weight, std::optional<int> x, std::optional<int> out) {
    Matrix result = view(weight);
    if (x)
      require_size("columns of the matrix", static_cast<size_t>(weight.cols), static_cast<size_t>(width(*x)));
    if (out)
      require_size("columns of the matrix", static_cast<size_t>(weight.cols),
                   static_cast<size_t>(width(*out)));
    if (x && result.format->integer_codes) executor_.require_quantized(*x);
    images_.push_back(weight.image);
    return result;
  }

  // The pool works without the GIL; a signal that raises stops the step first.
  void wait() {
    while (true) {
      bool done;
      {
        const nb::gil_scoped_release released;
        done = executor_.wait_for(kSignalPeriod);
      }
      if (done) return;
      if (PyErr_CheckSignals() == 0) continue;
      executor_.abort();
      {
        const nb::gil_scoped_release released;
        while (!executor_.wait_for(kSignalPeriod)) {
        }
      }
      throw nb::python_error();
    }
  }

  Executor executor_;
  int num_heads_ = 0;  // of every attention
  std::vector<std::shared_ptr<const RopeTable>> rope_tables_;
  std::vector<Vector<uint8_t>> images_;
  std::optional<int> exit_slot_;
  std::map<size_t, std::pair<Vector<uint8_t>, Vector<uint8_t>>> exit_images_;
  std::mutex mutex_;
};

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<Weight>(m, "Weight")
      .def(
          "__init__",
          [](Weight* self, std::string format, int64_t rows, int64_t cols, Vector<uint8_t> image,
             const std::optional<Vector<float>>& bias) {
            new (self) Weight{std::move(format), rows, cols, std::move(image), to_floats(bias)};
          },
          nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("image"), nb::arg("bias").none());
  nb::class_<PyExecutor>(m, "Executor")
      .def(nb::init<const std::string&, std::vector<int>, int32_t, int32_t, const PyKvShape&, int64_t,
                    int64_t, const std::vector<int64_t>&>(),
           nb::arg("isa"), nb::arg("cpus"), nb::arg("max_rows"), nb::arg("max_positions"), nb::arg("kv"),
           nb::arg("num_blocks"), nb::arg("vocab_size"), nb::arg("slot_widths"))
      .def("add_embed", &PyExecutor::add_embed)
      .def("add_rms_norm", &PyExecutor::add_rms_norm)
      .def("add_rms_norm_add", &PyExecutor::add_rms_norm_add)
      .def("add_linear", &PyExecutor::add_linear)
      .def("add_linear_add", &PyExecutor::add_linear_add)
      .def("add_gated_linear", &PyExecutor::add_gated_linear)
      .def("add_rope_table", &PyExecutor::add_rope_table)
      .def("add_rope_append", &PyExecutor::add_rope_append, nb::arg("qkv"), nb::arg("layer"),
           nb::arg("num_heads"), nb::arg("table"), nb::arg("q_norm").none(), nb::arg("k_norm").none(),
           nb::arg("epsilon"))
      .def("add_attention", &PyExecutor::add_attention, nb::arg("qkv"), nb::arg("layer"),
           nb::arg("num_heads"), nb::arg("scale"), nb::arg("window").none(), nb::arg("out"))
      .def("add_head", &PyExecutor::add_head)
      .def("finish", &PyExecutor::finish)
      .def("add_exit", &PyExecutor::add_exit)
      .def("step", &PyExecutor::step, nb::arg("tokens"), nb::arg("rows"), nb::arg("logits_rows"),
           nb::arg("logits"), nb::arg("exit").none() = nb::none(), nb::arg("taps") = PyTaps(),
           nb::arg("head_tiles").none() = nb::none())
      .def("abort", &PyExecutor::abort)
      .def("forget", &PyExecutor::forget)
      .def("read_block", &PyExecutor::read_block)
      .def("write_block", &PyExecutor::write_block)
      .def("op_seconds", &PyExecutor::op_seconds)
      .def_prop_ro("arena_bytes", &PyExecutor::arena_bytes)
      .def_prop_ro("kv_bytes", &PyExecutor::kv_bytes)
      .def_prop_ro("pinned_threads", &PyExecutor::pinned_threads);
  m.def("kv_float_block_bytes",
        [](const PyKvShape& kv) { return KvStore::float_block_bytes(to_kv_shape(kv)); });
  m.def("kv_block_bytes", [](const PyKvShape& kv) { return KvStore::block_bytes(to_kv_shape(kv)); });
}

}  // namespace ellm
