#include "gguf/shards.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "gguf/text.h"

namespace ellm::gguf {
namespace {

constexpr char kNumberKey[] = "split.no";
constexpr char kCountKey[] = "split.count";
constexpr char kTensorsKey[] = "split.tensors.count";
constexpr uint64_t kMaxShards = 65535;  // split.count is a u16
constexpr uint64_t kMaxTensors = INT32_MAX;

std::string five_digits(uint64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - std::min<size_t>(5, digits.size()), '0') + digits;
}

// `prefix`-00001-of-00003.gguf
struct ShardName {
  std::string prefix;
  uint64_t number;  // from 1
  uint64_t count;

  std::string shard_path(uint64_t shard_number) const {
    return prefix + "-" + five_digits(shard_number) + "-of-" + five_digits(count) + ".gguf";
  }
};

// What one shard says about the set.
struct Split {
  uint64_t number;  // from 0
  uint64_t count;
  uint64_t tensors;  // in all shards together
};

std::optional<uint64_t> parse_digits(std::string_view text) {
  uint64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

std::optional<ShardName> parse_shard_name(const std::string& path) {
  constexpr std::string_view kPattern = "-00001-of-00003.gguf";
  if (path.size() < kPattern.size()) return std::nullopt;
  const size_t start = path.size() - kPattern.size();
  const std::string_view tail = std::string_view(path).substr(start);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") {
    return std::nullopt;
  }
  const auto number = parse_digits(tail.substr(1, 5));
  const auto count = parse_digits(tail.substr(10, 5));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return ShardName{path.substr(0, start), *number, *count};
}

// The value of an integer entry, checked against its range.
uint64_t integer_of(const ByteSource& source, const Entry& entry, uint64_t minimum, uint64_t maximum) {
  const std::string range = "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum);
  const std::string what = "metadata " + quoted(entry.key);
  uint64_t number = 0;
  if (const auto* natural = std::get_if<uint64_t>(&entry.value)) {
    number = *natural;
  } else if (const auto* integer = std::get_if<int64_t>(&entry.value)) {
    if (*integer < 0) {
      throw invalid(source, what, entry.value_offset, std::to_string(*integer), range);
    }
    number = static_cast<uint64_t>(*integer);
  } else {
    throw invalid(source, what, entry.value_offset, "a value of type " + name_of(entry.type), range);
  }
  if (number < minimum || number > maximum) {
    throw invalid(source, what, entry.value_offset, std::to_string(number), range);
  }
  return number;
}

const Entry& require(const ByteSource& source, const Metadata& metadata, const char* key) {
  if (const Entry* entry = find(metadata, key)) return *entry;
  throw invalid(source, "metadata of a shard", 0, std::string("no key '") + key + "'",
                "split.no, split.count and split.tensors.count in every shard");
}

// What the file says, or nothing for a file that is not one of several.
std::optional<Split> split_of(const ByteSource& source, const Metadata& metadata) {
  const Entry* count = find(metadata, kCountKey);
  if (count == nullptr) return std::nullopt;
  Split split;
  split.count = integer_of(source, *count, 0, kMaxShards);
  if (split.count <= 1) return std::nullopt;
  split.number = integer_of(source, require(source, metadata, kNumberKey), 0, split.count - 1);
  split.tensors = integer_of(source, require(source, metadata, kTensorsKey), 0, kMaxTensors);
  return split;
}

void require_equal(const ByteSource& source, const Metadata& metadata, const char* key, uint64_t found,
                   uint64_t expected) {
  if (found == expected) return;
  throw invalid(source, std::string("metadata '") + key + "' of a shard", find(metadata, key)->value_offset,
                std::to_string(found), std::to_string(expected));
}

// A later shard may repeat the first one's keys, but not contradict them. The keys of the set are
// compared as numbers elsewhere, and each file has its own alignment.
void require_same_model(const ByteSource& source, const Metadata& metadata, const Metadata& first) {
  for (const Entry& entry : metadata) {
    if (entry.key.starts_with("split.") || entry.key == "general.alignment") continue;
    const Entry* other = find(first, entry.key);
    if (other == nullptr || other->value == entry.value) continue;
    throw invalid(source, "metadata " + quoted(entry.key) + " of a shard", entry.value_offset,
                  "another value than in the first shard", "shards of one model");
  }
}

class Joiner {
 public:
  Joiner(const std::string& path, const OpenSource& open) : path_(path), open_(open) {}

  Model join() {
    const std::unique_ptr<ByteSource> source = open_(path_);
    Header header = read_header(*source);
    const std::optional<Split> split = split_of(*source, header.metadata);
    const std::optional<ShardName> name = parse_shard_name(path_);
    require_first(*source, header.metadata, split, name);
    model_.version = header.version;
    model_.metadata = std::move(header.metadata);
    append(*source, header);
    if (!split || !name) return std::move(model_);  // a split without a name was refused above
    for (uint64_t number = 1; number < split->count; ++number) {
      append_shard(name->shard_path(number + 1), number, *split);
    }
    require_complete(*source, *split);
    return std::move(model_);
  }

 private:
  // A set is opened by its first file, whose name leads to the others.
  static void require_first(const ByteSource& source, const Metadata& metadata,
                            const std::optional<Split>& split, const std::optional<ShardName>& name) {
    if (!split) {
      if (!name || name->count <= 1) return;
      throw invalid(source, "metadata of a shard", 0, std::string("no key '") + kCountKey + "'",
                    std::string(kCountKey) + " " + std::to_string(name->count) + ", as the file's name says");
    }
    const Entry& count = *find(metadata, kCountKey);
    if (!name || name->count != split->count) {
      throw invalid(
          source, "one of several shards", count.value_offset,
          std::string(kCountKey) + " " + std::to_string(split->count),
          "a file name that ends in " + ShardName{"", 0, split->count}.shard_path(split->number + 1));
    }
    require_equal(source, metadata, kNumberKey, split->number, name->number - 1);
    if (split->number == 0) return;
    throw invalid(source, "one of several shards", find(metadata, kNumberKey)->value_offset,
                  "shard " + std::to_string(split->number + 1) + " of " + std::to_string(split->count),
                  "the first; open " + name->shard_path(1) + " instead");
  }

  void append_shard(const std::string& path, uint64_t number, const Split& first) {
    std::unique_ptr<ByteSource> source;
    try {
      source = open_(path);
    } catch (const Error& error) {
      throw Error(
          ErrorKind::kInvalidModel, "missing shard", path, std::nullopt, error.found,
          "shard " + std::to_string(number + 1) + " of " + std::to_string(first.count) + ", beside " + path_);
    }
    Header header = read_header(*source);
    const std::optional<Split> split = split_of(*source, header.metadata);
    if (!split) require(*source, header.metadata, kCountKey);
    const Split said = split.value_or(Split{0, 1, 0});
    require_equal(*source, header.metadata, kCountKey, said.count, first.count);
    require_equal(*source, header.metadata, kNumberKey, said.number, number);
    require_equal(*source, header.metadata, kTensorsKey, said.tensors, first.tensors);
    require_same_model(*source, header.metadata, model_.metadata);
    append(*source, header);
  }

  void append(const ByteSource& source, Header& header) {
    const auto shard = static_cast<uint32_t>(model_.shards.size());
    model_.shards.push_back({source.name(), source.identity(), header.size_bytes});
    for (Tensor& tensor : header.tensors) model_.tensors.push_back({std::move(tensor), shard});
  }

  void require_complete(const ByteSource& source, const Split& split) const {
    std::vector<const ModelTensor*> order;
    order.reserve(model_.tensors.size());
    for (const ModelTensor& one : model_.tensors) order.push_back(&one);
    const auto name = [](const ModelTensor* one) -> const std::string& { return one->tensor.name; };
    std::ranges::stable_sort(order, {}, name);
    const auto repeated = std::ranges::adjacent_find(order, {}, name);
    if (repeated != order.end()) {
      const ModelTensor& second = **(repeated + 1);
      throw Error(ErrorKind::kInvalidModel, "duplicate tensor", model_.shards[second.shard].path,
                  second.tensor.name_offset, quoted(second.tensor.name) + " again",
                  "each name in one shard; the other is " + model_.shards[(*repeated)->shard].path);
    }
    if (model_.tensors.size() == split.tensors) return;
    throw invalid(source, "tensors of all shards", find(model_.metadata, kTensorsKey)->value_offset,
                  std::to_string(model_.tensors.size()) + " tensors",
                  std::to_string(split.tensors) + ", as split.tensors.count says");
  }

  const std::string& path_;
  const OpenSource& open_;
  Model model_;
};

}  // namespace

Model read_model(const std::string& path, const OpenSource& open) { return Joiner(path, open).join(); }

Model read_model(const std::string& path) {
  return read_model(path, [](const std::string& shard_path) -> std::unique_ptr<ByteSource> {
    return std::make_unique<FileSource>(shard_path);
  });
}

}  // namespace ellm::gguf
