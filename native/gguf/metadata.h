// The key-value section of a GGUF file.
//
// Every string must be well-formed UTF-8, token texts included: byte-level vocabularies spell raw
// bytes as printable characters and SentencePiece ones as <0xNN>, so nothing valid is lost, and no
// half character can reach Python or a message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gguf/cursor.h"

namespace ellm::gguf {

// The numbers are the file's.
enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// "u32", "string", ...; "type 13" for a number that is no type.
std::string name_of(ValueType type);

// Bytes of one number or bool; 0 for strings, arrays and unknown types.
uint64_t fixed_bytes(ValueType type);

// Numbers or bools, as they lie in the file.
struct NumericArray {
  ValueType element;
  std::vector<uint8_t> bytes;

  bool operator==(const NumericArray&) const = default;
};

// Strings end to end; one block instead of one allocation per token.
struct StringArray {
  std::string text;
  std::vector<uint32_t> ends;  // 32 bits: the header is at most kMaxHeaderBytes

  bool operator==(const StringArray&) const = default;
};

using Value = std::variant<bool, uint64_t, int64_t, double, std::string, NumericArray, StringArray>;

struct Entry {
  std::string key;
  ValueType type;
  uint64_t key_offset;    // where the key's characters start
  uint64_t value_offset;  // where the value starts
  Value value;
};

// Key-value pairs in the file's order; keys are unique.
using Metadata = std::vector<Entry>;

// The entry of this key, or nullptr.
const Entry* find(const Metadata& metadata, std::string_view key);

// Reads `count` pairs. Throws kInvalidModel.
Metadata read_metadata(Cursor& cursor, uint64_t count);

// A name in the header: 1 to `max_bytes` bytes of UTF-8 without control characters.
std::string read_name(Cursor& cursor, const char* what, uint64_t max_bytes);

}  // namespace ellm::gguf
