#include "fuzz/touch_model.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace ellm::gguf {

void touch_model(const Model& model, const OpenSource& open) {
  std::vector<std::unique_ptr<ByteSource>> sources;
  for (const Shard& shard : model.shards) sources.push_back(open(shard.path));
  for (const ModelTensor& one : model.tensors) {
    const Tensor& tensor = one.tensor;
    const ByteSource& source = *sources.at(one.shard);
    uint8_t byte;
    if (tensor.size_bytes == 0 || source.read_at(tensor.offset, &byte, 1) != 1 ||
        source.read_at(tensor.offset + tensor.size_bytes - 1, &byte, 1) != 1) {
      throw std::logic_error("an accepted tensor lies outside its file: " + tensor.name);
    }
  }
}

}  // namespace ellm::gguf
