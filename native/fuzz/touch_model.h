// What the fuzz target and the sanitizer driver do with a model that was accepted.
#pragma once

#include "gguf/byte_source.h"
#include "gguf/shards.h"

namespace ellm::gguf {

// Reads the first and last byte of every tensor through `open`; throws std::logic_error if an
// accepted tensor is not inside its shard, which would be a bug of the reader.
void touch_model(const Model& model, const OpenSource& open);

}  // namespace ellm::gguf
