// Attention over the KV blocks of each row's own sequence.
#pragma once

#include <optional>

#include "ops/step.h"

namespace ellm {

struct AttentionSpec {
  int qkv;
  int layer;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  float scale;
  std::optional<int32_t> window;  // sees positions greater than p - window
  int out;
  int32_t max_positions;  // longest sequence, sizes the split scratch
};
// With int8 KV and without a window, rows may come with a rule (ops/block_choice.h).
std::unique_ptr<Op> make_attention(const AttentionSpec& spec, KvType type);

}  // namespace ellm
