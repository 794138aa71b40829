// Reads and checks the header of one GGUF file (version 2 or 3, little-endian).
//
// Files are untrusted: every count and size is checked against the real size of the file before it
// is used, and a file that breaks a rule ends in an `Error` naming file, offset, found and
// expected.
//
// Source: ggml docs/gguf.md. Stricter than it in one point, like llama.cpp: tensors lie one after
// the other, each at the next multiple of the alignment, so overlaps and hidden gaps are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/byte_source.h"
#include "gguf/metadata.h"
#include "gguf/weight_format.h"

namespace ellm::gguf {

struct Tensor {
  std::string name;
  const WeightFormat* format;
  std::vector<uint64_t> shape;  // slowest first, as in NumPy: (rows, cols)
  uint64_t offset;              // from the start of the file
  uint64_t size_bytes;
  uint64_t name_offset;  // where the header names it, for error messages
};

struct Header {
  uint32_t version;
  Metadata metadata;
  std::vector<Tensor> tensors;  // in the file's order; names are unique
  uint64_t size_bytes;          // of the header, without padding
};

// Throws kInvalidModel, or kUnsupported for a big-endian file, version 1, or a tensor type that
// eLLM does not read.
Header read_header(const ByteSource& source);

}  // namespace ellm::gguf
