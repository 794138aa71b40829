#include "bindings/bind_kernels.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "bindings/array_types.h"
#include "dispatch/dispatch.h"
#include "platform/bandwidth.h"
#include "threading/thread_pool.h"

namespace ellm {
namespace {

int64_t image_bytes(const WeightFormat& format, int64_t rows, int64_t cols) {
  return (rows + kTileRows - 1) / kTileRows * format.tile_bytes(cols);
}

nb::list list_formats() {
  nb::list formats;
  for (const WeightFormat* format : weight_formats()) {
    nb::dict entry;
    entry["name"] = format->name;
    entry["ggml_type"] = format->ggml_type;
    entry["block_weights"] = format->block_weights;
    entry["block_bytes"] = format->block_bytes;
    entry["integer_codes"] = format->integer_codes;
    formats.append(entry);
  }
  return formats;
}

void check_matrix(const WeightFormat& format, int64_t rows, int64_t cols) {
  const int64_t multiple = format.integer_codes ? std::max(format.block_weights, kGroup) : 1;
  if (rows > 0 && cols > 0 && cols % multiple == 0) return;
  throw Error(ErrorKind::kUnsupported, std::string("matrix of format ") + format.name, "", std::nullopt,
              std::to_string(rows) + " x " + std::to_string(cols),
              "rows > 0 and columns a multiple of " + std::to_string(multiple));
}

void repack(const std::string& name, int64_t rows, int64_t cols, const Vector<uint8_t>& source,
            WritableBytes target, const std::vector<int>& cpus) {
  const WeightFormat& format = weight_format(name);
  check_matrix(format, rows, cols);
  const int64_t row_bytes = cols / format.block_weights * format.block_bytes;
  require_size("bytes of weights", source.size(), static_cast<size_t>(rows * row_bytes));
  require_size("bytes of the image", target.size(), static_cast<size_t>(image_bytes(format, rows, cols)));
  const uint8_t* const from = source.data();
  uint8_t* const to = target.data();
  const nb::gil_scoped_release released;
  ThreadPool pool(cpus);
  pool.start([&](int rank) {
    const Share tiles = share_of((rows + kTileRows - 1) / kTileRows, rank, pool.size());
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const uint8_t* lanes[kTileRows];
      for (int64_t lane = 0; lane < kTileRows; ++lane) {
        const int64_t row = tile * kTileRows + lane;
        lanes[lane] = row < rows ? from + row * row_bytes : nullptr;
      }
      format.repack_tile(lanes, cols, to + tile * format.tile_bytes(cols));
    }
  });
  pool.wait();
}

void decode(const std::string& name, const Vector<uint8_t>& image, WritableRows out) {
  const WeightFormat& format = weight_format(name);
  const auto rows = static_cast<int64_t>(out.shape(0));
  const auto cols = static_cast<int64_t>(out.shape(1));
  check_matrix(format, rows, cols);
  require_size("bytes of the image", image.size(), static_cast<size_t>(image_bytes(format, rows, cols)));
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* tile = image.data() + row / kTileRows * format.tile_bytes(cols);
    format.decode_row(tile, static_cast<int>(row % kTileRows), cols, out.data() + row * cols);
  }
}

// y (T, rows) = x (T, cols) @ weight.T, as a step computes it, in calls of `rows_per_call` rows; from
// expanded tiles where asked for and the ISA has them.
void multiply(const std::string& name, const std::string& isa_name, const Vector<uint8_t>& image,
              const Rows<float>& x, WritableRows y, int rows_per_call, bool expanded) {
  const WeightFormat& format = weight_format(name);
  const Isa isa = choose_isa(isa_name);
  const auto cols = static_cast<int64_t>(x.shape(1));
  const auto rows = static_cast<int64_t>(y.shape(1));
  check_matrix(format, rows, cols);
  require_size("rows of the result", y.shape(0), x.shape(0));
  require_size("bytes of the image", image.size(), static_cast<size_t>(image_bytes(format, rows, cols)));
  const int64_t row_bytes = QuantizedRows::bytes_per_row(cols);
  std::vector<uint8_t> quantized(format.integer_codes ? x.shape(0) * static_cast<size_t>(row_bytes) : 0);
  const auto total = static_cast<int64_t>(x.shape(0));
  for (int64_t t = 0; t < total && format.integer_codes; ++t) {
    kernels_for(isa).quantize_groups(x.data() + t * cols, cols, 0, cols / kGroup,
                                     quantized.data() + t * row_bytes);
  }
  const LinearKernels& kernels = linear_for(format, isa);
  expanded = expanded && kernels.expand != nullptr;
  const LinearTile linear = expanded ? kernels.expanded : kernels.packed;
  std::vector<uint8_t> record(expanded ? static_cast<size_t>(cols / kGroup * kExpandedGroupBytes) : 0);
  const int64_t step = std::clamp(rows_per_call, 1, kMaxLinearRows);
  for (int64_t first = 0; first < total; first += step) {
    const int count = static_cast<int>(std::min(step, total - first));
    for (int64_t tile = 0; tile * kTileRows < rows; ++tile) {
      float out[kMaxLinearRows * kTileRows];
      const uint8_t* data = image.data() + tile * format.tile_bytes(cols);
      if (expanded) {
        kernels.expand(data, cols, record.data());
        data = record.data();
      }
      linear({data,
              cols,
              {quantized.data() + first * row_bytes, row_bytes, cols},
              x.data() + first * cols,
              cols,
              count,
              out,
              kTileRows});
      for (int64_t t = 0; t < count; ++t) {
        const int64_t lanes = std::min<int64_t>(kTileRows, rows - tile * kTileRows);
        std::copy_n(out + t * kTileRows, lanes, y.data() + (first + t) * rows + tile * kTileRows);
      }
    }
  }
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : supported_isas()) names.emplace_back(isa_name(isa));
  return names;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.attr("TILE_ROWS") = kTileRows;
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  m.def("supported_isas", isa_names);
  m.def("choose_isa", [](const std::string& name) { return std::string(isa_name(choose_isa(name))); });
  m.def("weight_formats", list_formats);
  m.def("image_bytes", [](const std::string& name, int64_t rows, int64_t cols) {
    const WeightFormat& format = weight_format(name);
    check_matrix(format, rows, cols);
    return image_bytes(format, rows, cols);
  });
  m.def("repack", repack, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("source"),
        nb::arg("target"), nb::arg("cpus"));
  m.def("decode", decode, nb::arg("format"), nb::arg("image"), nb::arg("out"));
  m.def("multiply", multiply, nb::arg("format"), nb::arg("isa"), nb::arg("image"), nb::arg("x"), nb::arg("y"),
        nb::arg("rows_per_call"), nb::arg("expanded"));
  m.def(
      "read_bandwidth_gb_per_s",
      [](const std::vector<int>& cpus, size_t bytes, double seconds) {
        const nb::gil_scoped_release released;
        return read_bandwidth_gb_per_s(cpus, bytes, seconds);
      },
      nb::arg("cpus"), nb::arg("bytes"), nb::arg("seconds"));
}

}  // namespace ellm
