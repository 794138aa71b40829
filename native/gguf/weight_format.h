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
const WeightFormat* FindWeightFormat(uint32_t id);

// Name of a type that ggml knows and eLLM does not read, or nullptr.
const char* UnsupportedTypeName(uint32_t id);

// Name of a type that ggml had once and removed, or nullptr.
const char* RemovedTypeName(uint32_t id);

// "f32, f16, ...": every format eLLM reads.
std::string SupportedTypeNames();

}  // namespace ellm::gguf
