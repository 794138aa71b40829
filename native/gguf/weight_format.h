// The tensor types a GGUF file may hold, and the ones eLLM reads.
#pragma once

#include <cstdint>
#include <string>

namespace ellm::gguf {

// Rows are cut into blocks of `block_elements` weights that take `block_bytes` each.
struct WeightFormat {
  uint32_t id;  // ggml's number, as in the file
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

// The format of this number, or nullptr if eLLM does not read it.
const WeightFormat* find_weight_format(uint32_t id);

// Name of a type that ggml knows and eLLM does not read, or nullptr.
const char* unsupported_type_name(uint32_t id);

// Name of a type that ggml had once and removed, or nullptr.
const char* removed_type_name(uint32_t id);

// "f32, f16, ...": every format eLLM reads.
std::string supported_type_names();

}  // namespace ellm::gguf
