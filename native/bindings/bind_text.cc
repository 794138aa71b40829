#include "bindings/bind_text.h"

#include <nanobind/stl/pair.h>

#include <optional>
#include <utility>

#include "bindings/array_types.h"
#include "text/suffix_index.h"

namespace ellm {
namespace {

// Below it, some 0.2 ms, the GIL is kept: who gives it away may wait 5 ms until another thread gives it back.
constexpr size_t kManyTokens = 1024;

void extend(SuffixIndex& index, const Vector<int32_t>& tokens) {
  std::optional<nb::gil_scoped_release> released;
  if (tokens.size() >= kManyTokens) released.emplace();
  index.extend({tokens.data(), tokens.size()});
}

std::pair<int64_t, int64_t> match(const SuffixIndex& index) {
  const SuffixIndex::Match match = index.match();
  return {match.length, match.next};
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<SuffixIndex>(m, "SuffixIndex",
                          "Not safe for several threads at once: extend may give up the GIL.")
      .def(nb::init<>())
      .def("extend", extend, nb::arg("tokens").noconvert())
      .def("match", match)
      .def("__len__", &SuffixIndex::size)
      .def_prop_ro("bytes", &SuffixIndex::bytes);
}

}  // namespace ellm
