#include "gguf/metadata.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "gguf/text.h"

namespace ellm::gguf {
namespace {

constexpr uint64_t kMaxKeyBytes = 65535;            // Source: ggml docs/gguf.md, gguf_metadata_kv_t
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;  // key length, key, value type, value

uint64_t read_length(Cursor& cursor, const char* what) {
  const auto length = cursor.read<uint64_t>(what);
  cursor.require(length, what);
  return length;
}

void append_string(Cursor& cursor, std::string& out, const char* what) {
  const uint64_t length = read_length(cursor, what);
  const uint64_t offset = cursor.offset();
  const size_t start = out.size();
  out.resize(start + length);
  cursor.read_bytes(out.data() + start, length, what);
  const std::string_view text = std::string_view(out).substr(start);
  if (!is_utf8(text)) {
    throw cursor.invalid(std::string(what) + " is not text", offset, quoted(text), "UTF-8");
  }
}

bool read_bool(Cursor& cursor, const char* what) {
  const uint64_t offset = cursor.offset();
  const auto byte = cursor.read<uint8_t>(what);
  if (byte > 1) throw cursor.invalid(what, offset, "bool " + std::to_string(byte), "0 or 1");
  return byte == 1;
}

NumericArray read_numbers(Cursor& cursor, ValueType element, uint64_t count, const char* what) {
  // A product that wraps is larger than any file; the largest number says so.
  const uint64_t size = checked_mul(count, fixed_bytes(element)).value_or(UINT64_MAX);
  cursor.require(size, what);
  const uint64_t offset = cursor.offset();
  NumericArray array{element, std::vector<uint8_t>(size)};
  cursor.read_bytes(array.bytes.data(), size, what);
  if (element != ValueType::kBool) return array;
  const auto bad = std::ranges::find_if(array.bytes, [](uint8_t byte) { return byte > 1; });
  if (bad != array.bytes.end()) {
    throw cursor.invalid(what, offset + (bad - array.bytes.begin()), "bool " + std::to_string(*bad),
                         "0 or 1");
  }
  return array;
}

StringArray read_strings(Cursor& cursor, uint64_t count, const char* what) {
  // Each string takes at least its length, so a hostile count fails here, before any allocation.
  cursor.require(checked_mul(count, sizeof(uint64_t)).value_or(UINT64_MAX), what);
  StringArray array;
  array.ends.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    append_string(cursor, array.text, what);
    array.ends.push_back(static_cast<uint32_t>(array.text.size()));
  }
  return array;
}

Value read_array(Cursor& cursor, const char* what) {
  const uint64_t offset = cursor.offset();
  const auto element = static_cast<ValueType>(cursor.read<uint32_t>(what));
  const auto count = cursor.read<uint64_t>(what);
  if (element == ValueType::kString) return read_strings(cursor, count, what);
  if (fixed_bytes(element) > 0) return read_numbers(cursor, element, count, what);
  throw cursor.invalid(what, offset, "an array of " + name_of(element),
                       "an array of numbers, bools or strings");
}

Value read_value(Cursor& cursor, ValueType type, uint64_t type_offset, const char* what) {
  switch (type) {
    case ValueType::kUint8: return uint64_t{cursor.read<uint8_t>(what)};
    case ValueType::kUint16: return uint64_t{cursor.read<uint16_t>(what)};
    case ValueType::kUint32: return uint64_t{cursor.read<uint32_t>(what)};
    case ValueType::kUint64: return cursor.read<uint64_t>(what);
    case ValueType::kInt8: return int64_t{cursor.read<int8_t>(what)};
    case ValueType::kInt16: return int64_t{cursor.read<int16_t>(what)};
    case ValueType::kInt32: return int64_t{cursor.read<int32_t>(what)};
    case ValueType::kInt64: return cursor.read<int64_t>(what);
    case ValueType::kFloat32: return double{cursor.read<float>(what)};
    case ValueType::kFloat64: return cursor.read<double>(what);
    case ValueType::kBool: return read_bool(cursor, what);
    case ValueType::kArray: return read_array(cursor, what);
    case ValueType::kString: {
      std::string text;
      append_string(cursor, text, what);
      return text;
    }
  }
  throw cursor.invalid(what, type_offset, name_of(type), "a value type from 0 to 12");
}

void require_unique_keys(const Cursor& cursor, const Metadata& metadata) {
  // Sorting costs n log n for any file; a hash table could be made quadratic by a hostile one.
  std::vector<const Entry*> entries;
  entries.reserve(metadata.size());
  for (const Entry& entry : metadata) entries.push_back(&entry);
  std::ranges::stable_sort(entries, {}, &Entry::key);
  const auto same = [](const Entry* a, const Entry* b) { return a->key == b->key; };
  const auto first = std::ranges::adjacent_find(entries, same);
  if (first == entries.end()) return;
  const Entry& second = **(first + 1);
  throw cursor.invalid("duplicate metadata key", second.key_offset, quoted(second.key) + " again",
                       "each key once");
}

}  // namespace

std::string name_of(ValueType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "type " + std::to_string(number);
}

uint64_t fixed_bytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool: return 1;
    case ValueType::kUint16:
    case ValueType::kInt16: return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32: return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64: return 8;
    case ValueType::kString:
    case ValueType::kArray: return 0;
  }
  return 0;
}

const Entry* find(const Metadata& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Entry::key);
  return found == metadata.end() ? nullptr : &*found;
}

std::string read_name(Cursor& cursor, const char* what, uint64_t max_bytes) {
  const uint64_t length_offset = cursor.offset();
  const uint64_t length = read_length(cursor, what);
  if (length == 0 || length > max_bytes) {
    throw cursor.invalid(what, length_offset, "a length of " + std::to_string(length),
                         "1 to " + bytes_text(max_bytes));
  }
  const uint64_t offset = cursor.offset();
  std::string name(length, '\0');
  cursor.read_bytes(name.data(), length, what);
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (!is_utf8(name) || std::ranges::any_of(name, is_control)) {
    throw cursor.invalid(what, offset, quoted(name), "UTF-8 without control characters");
  }
  return name;
}

Metadata read_metadata(Cursor& cursor, uint64_t count) {
  cursor.require(checked_mul(count, kMinEntryBytes).value_or(UINT64_MAX), "the metadata");
  Metadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    Entry entry;
    const uint64_t start = cursor.offset();
    entry.key = read_name(cursor, "metadata key", kMaxKeyBytes);
    entry.key_offset = start + sizeof(uint64_t);
    const uint64_t type_offset = cursor.offset();
    const std::string what = "metadata " + quoted(entry.key);
    entry.type = static_cast<ValueType>(cursor.read<uint32_t>(what.c_str()));
    entry.value_offset = cursor.offset();
    entry.value = read_value(cursor, entry.type, type_offset, what.c_str());
    metadata.push_back(std::move(entry));
  }
  require_unique_keys(cursor, metadata);
  return metadata;
}

}  // namespace ellm::gguf
