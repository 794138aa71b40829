#include "kv/kv_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/error.h"
#include "kernels/attention/int8_layout.h"

namespace ellm {
namespace {

// Chains are rejected within 64 tokens: the block before the open one may be entered again.
constexpr int32_t kKeptBlocks = 2;

int64_t element_bytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

int64_t keys_bytes(const KvShape& shape) {
  return int64_t{kBlockTokens} * shape.head_dim * element_bytes(shape.type);
}

int64_t values_bytes(const KvShape& shape) {
  return int64_t{kBlockTokens} * padded_dim(shape.head_dim) * element_bytes(shape.type);
}

}  // namespace

int64_t KvStore::part_bytes(const KvShape& shape) {
  if (shape.type == KvType::kInt8) return Int8Block::bytes(padded_dim(shape.head_dim));
  return keys_bytes(shape) + values_bytes(shape);
}

int64_t KvStore::block_bytes(const KvShape& shape) {
  return part_bytes(shape) * shape.num_layers * shape.num_kv_heads;
}

int64_t KvStore::float_block_bytes(const KvShape& shape) {
  if (shape.type != KvType::kInt8) return 0;
  return (keys_bytes(shape) + values_bytes(shape)) * shape.num_layers * shape.num_kv_heads;
}

KvStore::KvStore(const KvShape& shape, int64_t num_blocks)
    : shape_(shape),
      num_blocks_(num_blocks),
      part_bytes_(part_bytes(shape)),
      values_offset_(keys_bytes(shape)),
      pages_(static_cast<size_t>(block_bytes(shape) * num_blocks)) {
  if (shape.type != KvType::kInt8) return;
  if (shape.head_dim > kMaxInt8HeadDim) {
    throw Error(ErrorKind::kUnsupported, "int8 KV", "", std::nullopt,
                "head_dim " + std::to_string(shape.head_dim), "at most " + std::to_string(kMaxInt8HeadDim));
  }
  float_part_bytes_ = keys_bytes(shape) + values_bytes(shape);
  float_values_offset_ = keys_bytes(shape);
  // Given back block by block: huge pages would hold on to neighbours.
  floats_ = Pages(static_cast<size_t>(float_block_bytes(shape) * num_blocks), Pages::Size::kSmall);
  float_tokens_.resize(static_cast<size_t>(num_blocks));
}

void KvStore::prepare(const int32_t* blocks, int32_t start, int32_t count) {
  if (shape_.type != KvType::kInt8) return;
  const int32_t first = start / kBlockTokens;
  const int32_t inside = start % kBlockTokens;
  if (inside > float_tokens_[static_cast<size_t>(blocks[first])]) {
    throw Error(ErrorKind::kConfig, "position to go on from", "", std::nullopt, std::to_string(start),
                std::to_string(first * kBlockTokens) + ": the block's float form is gone");
  }
  const int32_t end = start + count;
  const int32_t last = (end - 1) / kBlockTokens;
  for (int32_t b = first; b <= last; ++b) {
    const int32_t tokens = std::min(end - b * kBlockTokens, kBlockTokens);
    float_tokens_[static_cast<size_t>(blocks[b])] = static_cast<uint8_t>(tokens);
  }
  // Rows of this step see their own blocks in float: only blocks before its first may go.
  for (int32_t b = first - kKeptBlocks; b >= 0; --b) {
    if (float_tokens_[static_cast<size_t>(blocks[b])] == 0) break;
    drop_floats(blocks[b]);
  }
}

void KvStore::forget(int32_t block) {
  if (shape_.type == KvType::kInt8 && float_tokens_[static_cast<size_t>(block)] != 0) drop_floats(block);
}

void KvStore::copy_out(int32_t block, uint8_t* target) const {
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (int head = 0; head < shape_.num_kv_heads; ++head, target += part_bytes_)
      std::memcpy(target, keys(layer, head, block), static_cast<size_t>(part_bytes_));
  }
}

void KvStore::copy_in(int32_t block, const uint8_t* source) {
  // Its float form, if there was one, is of other tokens.
  forget(block);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (int head = 0; head < shape_.num_kv_heads; ++head, source += part_bytes_)
      std::memcpy(keys(layer, head, block), source, static_cast<size_t>(part_bytes_));
  }
}

void KvStore::drop_floats(int32_t block) {
  const int64_t bytes = float_block_bytes(shape_);
  floats_.give_back(static_cast<size_t>(block * bytes), static_cast<size_t>(bytes));
  float_tokens_[static_cast<size_t>(block)] = 0;
}

}  // namespace ellm
