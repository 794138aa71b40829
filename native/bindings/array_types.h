// Array arguments of the bindings: the type says what Python must pass.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "base/error.h"

namespace ellm {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Rows = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require_size(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw Error(ErrorKind::kInternal, what, "", std::nullopt, std::to_string(found), std::to_string(expected));
}

}  // namespace ellm
