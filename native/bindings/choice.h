// What Python says of rows that choose their blocks, and what it gets back.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "bindings/array_types.h"
#include "ops/step.h"

namespace ellm {

using WritableCounts = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Observed = std::optional<nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>>;

using Factors = std::optional<Rows<float>>;

// Name of the estimate; mass; blocks at most; allowances (layers, KV heads) and scales (layers, heads) or
// None; counts (rows, 5) to be filled with ChoiceCounts; and what to observe, each (rows, layers, heads,
// blocks) or None: shares, then exact, scanned and mean masses.
using PyChoice = std::tuple<std::string, float, int32_t, Factors, Factors, WritableCounts, Observed, Observed,
                            Observed, Observed>;

// The memory behind the rules of one step's runs.
class StepChoices {
 public:
  explicit StepChoices(size_t runs) {
    rules_.reserve(runs);
    counts_.reserve(runs);
    observations_.reserve(runs);
  }

  void set(const PyChoice& choice, const KvShape& kv, int num_heads, RowRun* run) {
    const auto& [name, mass, max_blocks, allowances, scales, counts, shares, exact, scan, mean] = choice;
    require_size("rows of counts", counts.shape(0), static_cast<size_t>(run->count));
    require_size("columns of counts", counts.shape(1), 5);
    if (!(mass > 0.0f && mass <= 1.0f) || max_blocks < 0) {
      throw Error(ErrorKind::kConfig, "choice of blocks", "", std::nullopt,
                  std::to_string(mass) + " of the mass, " + std::to_string(max_blocks) + " blocks",
                  "above 0 to 1, at least 0");
    }
    rules_.push_back({estimate(name), mass, max_blocks, factors(allowances, kv, kv.num_kv_heads),
                      factors(scales, kv, num_heads)});
    counts_.emplace_back(static_cast<size_t>(run->count));
    outputs_.push_back(counts);
    run->rule = &rules_.back();
    run->counts = counts_.back().data();
    if (!shares && !exact && !scan && !mean) return;
    Observation observed = {kv.num_layers, 0, nullptr, {nullptr, nullptr, nullptr}};
    observed.shares = put(shares, kv, kv.num_kv_heads, *run, &observed.blocks);
    observed.masses[0] = put(exact, kv, num_heads, *run, &observed.blocks);
    observed.masses[1] = put(scan, kv, num_heads, *run, &observed.blocks);
    observed.masses[2] = put(mean, kv, num_heads, *run, &observed.blocks);
    observations_.push_back(observed);
    run->observed = &observations_.back();
  }

  // After the step: what was counted, to the arrays.
  void give_back() const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      double* out = outputs_[i].data();
      for (const ChoiceCounts& counts : counts_[i]) {
        *out++ = static_cast<double>(counts.blocks_total);
        *out++ = static_cast<double>(counts.blocks_read);
        *out++ = static_cast<double>(counts.widened);
        *out++ = counts.skipped_mass;
        *out++ = static_cast<double>(counts.heads);
      }
    }
  }

 private:
  static Estimate estimate(const std::string& name) {
    if (name == "exact") return Estimate::kExact;
    if (name == "scan") return Estimate::kScan;
    if (name == "mean") return Estimate::kMean;
    throw Error(ErrorKind::kConfig, "estimate of attention", "", std::nullopt, name, "exact, scan or mean");
  }
  static const float* factors(const Factors& array, const KvShape& kv, int heads) {
    if (!array) return nullptr;
    require_size("layers of factors", array->shape(0), static_cast<size_t>(kv.num_layers));
    require_size("heads of factors", array->shape(1), static_cast<size_t>(heads));
    return array->data();
  }
  // All arrays of a choice have as many blocks, at least those of its last row.
  static float* put(const Observed& array, const KvShape& kv, int heads, const RowRun& run, int32_t* blocks) {
    if (!array) return nullptr;
    require_size("rows observed", array->shape(0), static_cast<size_t>(run.count));
    require_size("layers observed", array->shape(1), static_cast<size_t>(kv.num_layers));
    require_size("heads observed", array->shape(2), static_cast<size_t>(heads));
    const auto found = static_cast<int32_t>(array->shape(3));
    if (*blocks != 0) require_size("blocks observed", array->shape(3), static_cast<size_t>(*blocks));
    const int32_t needed = (run.start + run.count - 1) / kBlockTokens;
    if (found < needed) require_size("blocks observed", array->shape(3), static_cast<size_t>(needed));
    *blocks = found;
    return array->data();
  }

  std::vector<ChoiceRule> rules_;
  std::vector<std::vector<ChoiceCounts>> counts_;
  std::vector<Observation> observations_;
  std::vector<WritableCounts> outputs_;
};

}  // namespace ellm
