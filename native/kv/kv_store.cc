#include "kv/kv_store.h"

namespace ellm {
namespace {

int64_t element_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

int64_t keys_bytes(const KvShape& shape) {
  return int64_t{kBlockTokens} * shape.head_dim * element_bytes(shape.type);
}

}  // namespace

int64_t KvStore::part_bytes(const KvShape& shape) {
  return keys_bytes(shape) + int64_t{kBlockTokens} * padded_dim(shape.head_dim) * element_bytes(shape.type);
}

int64_t KvStore::block_bytes(const KvShape& shape) {
  return part_bytes(shape) * shape.num_layers * shape.num_kv_heads;
}

KvStore::KvStore(const KvShape& shape, int64_t num_blocks)
    : shape_(shape),
      num_blocks_(num_blocks),
      part_bytes_(part_bytes(shape)),
      values_offset_(keys_bytes(shape)),
      pages_(static_cast<size_t>(block_bytes(shape) * num_blocks)) {}

}  // namespace ellm
