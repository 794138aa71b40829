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

uint64_t ReadLength(Cursor& cursor, const char* what) {
  const auto length = cursor.Read<uint64_t>(what);
  cursor.Require(length, what);
  return length;
}

void AppendString(Cursor& cursor, std::string& out, const char* what) {
  const uint64_t length = ReadLength(cursor, what);
  const uint64_t offset = cursor.offset();
  const size_t start = out.size();
  out.resize(start + length);
  cursor.ReadBytes(out.data() + start, length, what);
  const std::string_view text = std::string_view(out).substr(start);
  if (!IsUtf8(text)) {
    throw cursor.Invalid(std::string(what) + " is not text", offset, Quoted(text), "UTF-8");
  }
}

bool ReadBool(Cursor& cursor, const char* what) {
  const uint64_t offset = cursor.offset();
  const auto byte = cursor.Read<uint8_t>(what);
  if (byte > 1) throw cursor.Invalid(what, offset, "bool " + std::to_string(byte), "0 or 1");
  return byte == 1;
}

NumericArray ReadNumbers(Cursor& cursor, ValueType element, uint64_t count, const char* what) {
  // A product that wraps is larger than any file; the largest number says so.
  const uint64_t size = CheckedMul(count, FixedBytes(element)).value_or(UINT64_MAX);
  cursor.Require(size, what);
  const uint64_t offset = cursor.offset();
  NumericArray array{element, std::vector<uint8_t>(size)};
  cursor.ReadBytes(array.bytes.data(), size, what);
  if (element != ValueType::kBool) return array;
  const auto bad = std::ranges::find_if(array.bytes, [](uint8_t byte) { return byte > 1; });
  if (bad != array.bytes.end()) {
    throw cursor.Invalid(what, offset + (bad - array.bytes.begin()), "bool " + std::to_string(*bad),
                         "0 or 1");
  }
  return array;
}

StringArray ReadStrings(Cursor& cursor, uint64_t count, const char* what) {
  // Each string takes at least its length, so a hostile count fails here, before any allocation.
  cursor.Require(CheckedMul(count, sizeof(uint64_t)).value_or(UINT64_MAX), what);
  StringArray array;
  array.ends.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    AppendString(cursor, array.text, what);
    array.ends.push_back(static_cast<uint32_t>(array.text.size()));
  }
  return array;
}

Value ReadArray(Cursor& cursor, const char* what) {
  const uint64_t offset = cursor.offset();
  const auto element = static_cast<ValueType>(cursor.Read<uint32_t>(what));
  const auto count = cursor.Read<uint64_t>(what);
  if (element == ValueType::kString) return ReadStrings(cursor, count, what);
  if (FixedBytes(element) > 0) return ReadNumbers(cursor, element, count, what);
  throw cursor.Invalid(what, offset, "an array of " + NameOf(element),
                       "an array of numbers, bools or strings");
}

Value ReadValue(Cursor& cursor, ValueType type, uint64_t type_offset, const char* what) {
  switch (type) {
    case ValueType::kUint8:
      return uint64_t{cursor.Read<uint8_t>(what)};
    case ValueType::kUint16:
      return uint64_t{cursor.Read<uint16_t>(what)};
    case ValueType::kUint32:
      return uint64_t{cursor.Read<uint32_t>(what)};
    case ValueType::kUint64:
      return cursor.Read<uint64_t>(what);
    case ValueType::kInt8:
      return int64_t{cursor.Read<int8_t>(what)};
    case ValueType::kInt16:
      return int64_t{cursor.Read<int16_t>(what)};
    case ValueType::kInt32:
      return int64_t{cursor.Read<int32_t>(what)};
    case ValueType::kInt64:
      return cursor.Read<int64_t>(what);
    case ValueType::kFloat32:
      return double{cursor.Read<float>(what)};
    case ValueType::kFloat64:
      return cursor.Read<double>(what);
    case ValueType::kBool:
      return ReadBool(cursor, what);
    case ValueType::kArray:
      return ReadArray(cursor, what);
    case ValueType::kString: {
      std::string text;
      AppendString(cursor, text, what);
      return text;
    }
  }
  throw cursor.Invalid(what, type_offset, NameOf(type), "a value type from 0 to 12");
}

void RequireUniqueKeys(const Cursor& cursor, const Metadata& metadata) {
  // Sorting costs n log n for any file; a hash table could be made quadratic by a hostile one.
  std::vector<const Entry*> entries;
  entries.reserve(metadata.size());
  for (const Entry& entry : metadata) entries.push_back(&entry);
  std::ranges::stable_sort(entries, {}, &Entry::key);
  const auto same = [](const Entry* a, const Entry* b) { return a->key == b->key; };
  const auto first = std::ranges::adjacent_find(entries, same);
  if (first == entries.end()) return;
  const Entry& second = **(first + 1);
  throw cursor.Invalid("duplicate metadata key", second.key_offset, Quoted(second.key) + " again",
                       "each key once");
}

}  // namespace

std::string NameOf(ValueType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "type " + std::to_string(number);
}

uint64_t FixedBytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      return 0;
  }
  return 0;
}

const Entry* Find(const Metadata& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Entry::key);
  return found == metadata.end() ? nullptr : &*found;
}

std::string ReadName(Cursor& cursor, const char* what, uint64_t max_bytes) {
  const uint64_t length_offset = cursor.offset();
  const uint64_t length = ReadLength(cursor, what);
  if (length == 0 || length > max_bytes) {
    throw cursor.Invalid(what, length_offset, "a length of " + std::to_string(length),
                         "1 to " + Bytes(max_bytes));
  }
  const uint64_t offset = cursor.offset();
  std::string name(length, '\0');
  cursor.ReadBytes(name.data(), length, what);
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (!IsUtf8(name) || std::ranges::any_of(name, is_control)) {
    throw cursor.Invalid(what, offset, Quoted(name), "UTF-8 without control characters");
  }
  return name;
}

Metadata ReadMetadata(Cursor& cursor, uint64_t count) {
  cursor.Require(CheckedMul(count, kMinEntryBytes).value_or(UINT64_MAX), "the metadata");
  Metadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    Entry entry;
    const uint64_t start = cursor.offset();
    entry.key = ReadName(cursor, "metadata key", kMaxKeyBytes);
    entry.key_offset = start + sizeof(uint64_t);
    const uint64_t type_offset = cursor.offset();
    const std::string what = "metadata " + Quoted(entry.key);
    entry.type = static_cast<ValueType>(cursor.Read<uint32_t>(what.c_str()));
    entry.value_offset = cursor.offset();
    entry.value = ReadValue(cursor, entry.type, type_offset, what.c_str());
    metadata.push_back(std::move(entry));
  }
  RequireUniqueKeys(cursor, metadata);
  return metadata;
}

}  // namespace ellm::gguf
