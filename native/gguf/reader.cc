#include "gguf/reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "gguf/cursor.h"
#include "gguf/text.h"

namespace ellm::gguf {
namespace {

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
constexpr uint64_t kHeadBytes = 24;  // magic, version, tensor count, key count

constexpr uint64_t kMaxTensorNameBytes = 64;  // Source: ggml docs/gguf.md, gguf_tensor_info_t
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, one dim, type, offset

// ggml counts elements in int64.
constexpr uint64_t kMaxElements = INT64_MAX;

// gguf.md asks for a multiple of 8. Two MiB is the largest page that a writer has reason to align
// to; beyond it, padding could hide anything.
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{2} << 20;
constexpr uint64_t kDefaultAlignment = 32;

struct Counts {
  uint32_t version;
  uint64_t tensors;
  uint64_t entries;
};

// A tensor as its header line says, not yet checked against the data section.
struct Placed {
  Tensor tensor;
  uint64_t offset_field;  // where the header holds the offset
};

Error unsupported(const ByteSource& source, std::string what, uint64_t offset, std::string found,
                  std::string expected) {
  return Error(ErrorKind::kUnsupported, std::move(what), source.name(), offset, std::move(found),
               std::move(expected));
}

void check_version(const ByteSource& source, const Cursor& cursor, uint32_t version) {
  constexpr uint64_t kOffset = sizeof kMagic;
  constexpr char kExpected[] = "little-endian version 2 or 3";
  if (version == 2 || version == 3) return;
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped == 2 || swapped == 3) {
    throw unsupported(source, "GGUF byte order", kOffset, "big-endian version " + std::to_string(swapped),
                      std::string(kExpected) + " (convert the model again for little-endian)");
  }
  if (version == 1) {
    throw unsupported(source, "GGUF version", kOffset, "the obsolete version 1", kExpected);
  }
  throw cursor.invalid("GGUF version", kOffset, std::to_string(version), kExpected);
}

Counts read_counts(const ByteSource& source, Cursor& cursor) {
  const std::string expected = "a GGUF file of at least " + bytes_text(kHeadBytes);
  if (source.size() == 0) throw cursor.invalid("not a GGUF file", 0, "an empty file", expected);
  if (source.size() < sizeof kMagic) {
    throw cursor.invalid("not a GGUF file", 0, bytes_text(source.size()), expected);
  }
  char magic[sizeof kMagic];
  cursor.read_bytes(magic, sizeof magic, "magic");
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) {
    throw cursor.invalid("not a GGUF file", 0, quoted({magic, sizeof magic}), "'GGUF'");
  }
  Counts counts;
  counts.version = cursor.read<uint32_t>("GGUF version");
  check_version(source, cursor, counts.version);
  counts.tensors = cursor.read<uint64_t>("tensor count");
  counts.entries = cursor.read<uint64_t>("metadata count");
  // Checked before the metadata is read, so that the offset is the field's.
  const std::optional<uint64_t> least = checked_mul(counts.tensors, kMinTensorBytes);
  if (!least || *least > cursor.remaining()) {
    throw cursor.invalid("tensor count", 8, std::to_string(counts.tensors),
                         "at most " + std::to_string(cursor.remaining() / kMinTensorBytes) +
                             ", all that the header has room for");
  }
  return counts;
}

uint64_t alignment_of(const Cursor& cursor, const Metadata& metadata) {
  const Entry* entry = find(metadata, "general.alignment");
  if (entry == nullptr) return kDefaultAlignment;
  const std::string expected =
      "a u32 power of two from " + std::to_string(kMinAlignment) + " to " + std::to_string(kMaxAlignment);
  const auto* number = std::get_if<uint64_t>(&entry->value);
  if (entry->type != ValueType::kUint32 || number == nullptr) {
    throw cursor.invalid("metadata 'general.alignment'", entry->value_offset,
                         "a value of type " + name_of(entry->type), expected);
  }
  const bool power_of_two = (*number & (*number - 1)) == 0;
  if (*number < kMinAlignment || *number > kMaxAlignment || !power_of_two) {
    throw cursor.invalid("metadata 'general.alignment'", entry->value_offset, std::to_string(*number),
                         expected);
  }
  return *number;
}

// The dimensions, slowest first; their product fits kMaxElements.
std::vector<uint64_t> read_shape(Cursor& cursor, const std::string& what) {
  const uint64_t count_offset = cursor.offset();
  const auto count = cursor.read<uint32_t>(what.c_str());
  if (count < 1 || count > kMaxDims) {
    throw cursor.invalid(what, count_offset, std::to_string(count) + " dimensions",
                         "1 to " + std::to_string(kMaxDims));
  }
  const uint64_t offset = cursor.offset();
  std::vector<uint64_t> shape(count);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t dim_offset = cursor.offset();
    const auto dim = cursor.read<int64_t>(what.c_str());
    if (dim <= 0) {
      throw cursor.invalid(what, dim_offset, "dimension " + std::to_string(dim), "1 or more");
    }
    shape[count - 1 - i] = static_cast<uint64_t>(dim);
    const std::optional<uint64_t> product = checked_mul(elements, static_cast<uint64_t>(dim));
    if (!product || *product > kMaxElements) {
      throw cursor.invalid(what, offset, "dimensions whose product overflows",
                           "at most " + std::to_string(kMaxElements) + " elements");
    }
    elements = *product;
  }
  return shape;
}

const WeightFormat* read_format(const ByteSource& source, Cursor& cursor, const std::string& what) {
  const uint64_t offset = cursor.offset();
  const auto id = cursor.read<uint32_t>(what.c_str());
  if (const WeightFormat* format = find_weight_format(id)) return format;
  const std::string expected = "one of " + supported_type_names();
  if (const char* name = unsupported_type_name(id)) {
    throw unsupported(source, what, offset, std::string("type ") + name, expected);
  }
  std::string found = "type " + std::to_string(id);
  if (const char* name = removed_type_name(id)) found += std::string(" (") + name + ", removed)";
  throw cursor.invalid(what, offset, found, expected);
}

uint64_t size_of(const Cursor& cursor, const Tensor& tensor, const std::string& what) {
  const WeightFormat& format = *tensor.format;
  const uint64_t cols = tensor.shape.back();
  if (cols % format.block_elements != 0) {
    throw cursor.invalid(
        what, tensor.name_offset, "rows of " + std::to_string(cols) + " elements",
        "a multiple of " + std::to_string(format.block_elements) + ", the block of " + format.name);
  }
  uint64_t elements = 1;
  for (const uint64_t dim : tensor.shape) elements *= dim;  // read_shape has bounded the product
  const std::optional<uint64_t> size = checked_mul(elements / format.block_elements, format.block_bytes);
  if (size) return *size;
  throw cursor.invalid(what, tensor.name_offset, std::to_string(elements) + " elements",
                       "fewer than 2^64 bytes");
}

Placed read_tensor(const ByteSource& source, Cursor& cursor) {
  Placed placed;
  Tensor& tensor = placed.tensor;
  tensor.name_offset = cursor.offset() + sizeof(uint64_t);
  tensor.name = read_name(cursor, "tensor name", kMaxTensorNameBytes);
  const std::string what = "tensor " + quoted(tensor.name);
  tensor.shape = read_shape(cursor, what);
  tensor.format = read_format(source, cursor, what);
  placed.offset_field = cursor.offset();
  tensor.offset = cursor.read<uint64_t>(what.c_str());
  tensor.size_bytes = size_of(cursor, tensor, what);
  return placed;
}

void require_unique_names(const Cursor& cursor, const std::vector<Placed>& placed) {
  std::vector<const Tensor*> tensors;
  tensors.reserve(placed.size());
  for (const Placed& one : placed) tensors.push_back(&one.tensor);
  std::ranges::stable_sort(tensors, {}, &Tensor::name);
  const auto same = [](const Tensor* a, const Tensor* b) { return a->name == b->name; };
  const auto first = std::ranges::adjacent_find(tensors, same);
  if (first == tensors.end()) return;
  const Tensor& second = **(first + 1);
  throw cursor.invalid("duplicate tensor", second.name_offset, quoted(second.name) + " again",
                       "each name once");
}

// Makes the offset absolute if the tensor lies inside the file.
void place(const Cursor& cursor, Placed& placed, uint64_t data_start, uint64_t alignment,
           uint64_t file_size) {
  Tensor& tensor = placed.tensor;
  const std::string what = "tensor " + quoted(tensor.name);
  const std::string found = "data offset " + std::to_string(tensor.offset);
  if (tensor.offset % alignment != 0) {
    throw cursor.invalid(what, placed.offset_field, found,
                         "a multiple of the alignment " + std::to_string(alignment));
  }
  const std::optional<uint64_t> start = checked_add(data_start, tensor.offset);
  const std::optional<uint64_t> end = start ? checked_add(*start, tensor.size_bytes) : std::nullopt;
  if (!end || *end > file_size) {
    const uint64_t room = file_size > data_start ? file_size - data_start : 0;
    throw cursor.invalid(what, placed.offset_field, found + " and " + bytes_text(tensor.size_bytes),
                         "an end within the " + bytes_text(room) + " of tensor data in the file");
  }
  tensor.offset = *start;
}

// Each tensor starts where the one before it ends, rounded up to the alignment.
void require_contiguous(const Cursor& cursor, const std::vector<Placed>& placed, uint64_t data_start,
                        uint64_t alignment) {
  std::vector<const Placed*> order;
  order.reserve(placed.size());
  for (const Placed& one : placed) order.push_back(&one);
  std::ranges::stable_sort(order, {}, [](const Placed* one) { return one->tensor.offset; });
  uint64_t end = 0;  // in the data section, as all offsets here
  const Tensor* before = nullptr;
  for (const Placed* one : order) {
    const Tensor& tensor = one->tensor;
    const uint64_t offset = tensor.offset - data_start;
    const uint64_t expected = checked_align_up(end, alignment).value_or(UINT64_MAX);
    if (offset != expected) {
      const std::string neighbour = before ? " after tensor " + quoted(before->name) : "";
      throw cursor.invalid(
          "tensor " + quoted(tensor.name), one->offset_field,
          "data offset " + std::to_string(offset) + (offset < end ? ", an overlap" : ", a gap") + neighbour,
          "data offset " + std::to_string(expected));
    }
    end = offset + tensor.size_bytes;  // Place has bounded it by the size of the file
    before = &tensor;
  }
}

std::vector<Tensor> read_tensors(const ByteSource& source, Cursor& cursor, uint64_t count,
                                 uint64_t alignment) {
  cursor.require(checked_mul(count, kMinTensorBytes).value_or(UINT64_MAX), "the tensor list");
  std::vector<Placed> placed;
  for (uint64_t i = 0; i < count; ++i) placed.push_back(read_tensor(source, cursor));
  require_unique_names(cursor, placed);
  const uint64_t data_start = checked_align_up(cursor.offset(), alignment).value_or(UINT64_MAX);
  for (Placed& one : placed) place(cursor, one, data_start, alignment, source.size());
  require_contiguous(cursor, placed, data_start, alignment);
  std::vector<Tensor> tensors;
  tensors.reserve(placed.size());
  for (Placed& one : placed) tensors.push_back(std::move(one.tensor));
  return tensors;
}

}  // namespace

Header read_header(const ByteSource& source) {
  Cursor cursor(source);
  const Counts counts = read_counts(source, cursor);
  Header header;
  header.version = counts.version;
  header.metadata = read_metadata(cursor, counts.entries);
  const uint64_t alignment = alignment_of(cursor, header.metadata);
  header.tensors = read_tensors(source, cursor, counts.tensors, alignment);
  header.size_bytes = cursor.offset();
  source.check_unchanged();
  return header;
}

}  // namespace ellm::gguf
