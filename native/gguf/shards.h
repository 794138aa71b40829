// Opens a model: one GGUF file, or a set `name-00001-of-0000N.gguf` joined into one.
//
// Source: llama.cpp tools/gguf-split: keys split.no (from 0), split.count, split.tensors.count; the
// first shard holds the model's metadata, every shard its own tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gguf/byte_source.h"
#include "gguf/reader.h"

namespace ellm::gguf {

struct Shard {
  std::string path;
  FileIdentity identity;
  uint64_t header_bytes;
};

struct ModelTensor {
  Tensor tensor;
  uint32_t shard;  // index into Model::shards
};

struct Model {
  uint32_t version = 0;
  Metadata metadata;  // the first shard's
  std::vector<ModelTensor> tensors;
  std::vector<Shard> shards;
};

using OpenSource = std::function<std::unique_ptr<ByteSource>(const std::string& path)>;

// Reads and checks every shard; `open` makes the source of each path. Throws what read_header
// throws, and kInvalidModel for shards that are missing, foreign, repeated or not the first.
Model read_model(const std::string& path, const OpenSource& open);

// The same for files on disk.
Model read_model(const std::string& path);

}  // namespace ellm::gguf
