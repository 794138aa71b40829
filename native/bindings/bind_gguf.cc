#include "bindings/bind_gguf.h"

#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gguf/shards.h"

namespace nb = nanobind;

namespace ellm {
namespace {

using gguf::NumericArray;
using gguf::StringArray;
using gguf::ValueType;

nb::object to_text(const char* data, size_t size) {
  PyObject* text = PyUnicode_DecodeUTF8(data, static_cast<Py_ssize_t>(size), "strict");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

nb::object to_text(const std::string& text) { return to_text(text.data(), text.size()); }

nb::object path_text(const std::string& path) {
  PyObject* text = PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

std::string encoded_path(nb::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw nb::python_error();
  const nb::object owner = nb::steal(bytes);
  return std::string(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
}

nb::object text_list(const StringArray& array) {
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(array.ends.size())));
  if (!list.is_valid()) throw nb::python_error();
  uint32_t start = 0;
  for (size_t i = 0; i < array.ends.size(); ++i) {
    const uint32_t end = array.ends[i];
    nb::object text = to_text(array.text.data() + start, end - start);
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), text.release().ptr());
    start = end;
  }
  return list;
}

nb::dlpack::dtype dtype_of(ValueType type) {
  switch (type) {
    case ValueType::kUint8: return nb::dtype<uint8_t>();
    case ValueType::kInt8: return nb::dtype<int8_t>();
    case ValueType::kUint16: return nb::dtype<uint16_t>();
    case ValueType::kInt16: return nb::dtype<int16_t>();
    case ValueType::kUint32: return nb::dtype<uint32_t>();
    case ValueType::kInt32: return nb::dtype<int32_t>();
    case ValueType::kUint64: return nb::dtype<uint64_t>();
    case ValueType::kInt64: return nb::dtype<int64_t>();
    case ValueType::kFloat32: return nb::dtype<float>();
    case ValueType::kFloat64: return nb::dtype<double>();
    case ValueType::kBool: return nb::dtype<bool>();
    case ValueType::kString:
    case ValueType::kArray: break;
  }
  throw Error(ErrorKind::kInternal, "no dtype for an array of " + gguf::name_of(type));
}

// A NumPy array that owns the bytes.
nb::object to_array(NumericArray array) {
  const size_t count = array.bytes.size() / gguf::fixed_bytes(array.element);
  auto bytes = std::make_unique<std::vector<uint8_t>>(std::move(array.bytes));
  const nb::capsule owner(bytes.get(),
                          [](void* pointer) noexcept { delete static_cast<std::vector<uint8_t>*>(pointer); });
  void* data = bytes.release()->data();
  return nb::cast(nb::ndarray<nb::numpy>(data, {count}, owner, {}, dtype_of(array.element)));
}

struct ToPython {
  nb::object operator()(bool value) const { return nb::bool_(value); }
  nb::object operator()(uint64_t value) const { return nb::int_(value); }
  nb::object operator()(int64_t value) const { return nb::int_(value); }
  nb::object operator()(double value) const { return nb::float_(value); }
  nb::object operator()(const std::string& value) const { return to_text(value); }
  nb::object operator()(const StringArray& value) const { return text_list(value); }
  nb::object operator()(NumericArray& value) const { return to_array(std::move(value)); }
};

nb::object tensor_tuple(const gguf::ModelTensor& one) {
  const gguf::Tensor& tensor = one.tensor;
  nb::list shape;
  for (const uint64_t dim : tensor.shape) shape.append(dim);
  return nb::make_tuple(to_text(tensor.name), tensor.format->name, nb::tuple(shape), one.shard, tensor.offset,
                        tensor.size_bytes);
}

nb::object shard_tuple(const gguf::Shard& shard) {
  const gguf::FileIdentity& identity = shard.identity;
  return nb::make_tuple(path_text(shard.path), identity.device, identity.inode, identity.size_bytes,
                        identity.mtime_ns, shard.header_bytes);
}

nb::dict read_gguf(nb::handle path) {
  const std::string path_bytes = encoded_path(path);
  gguf::Model model;
  {
    const nb::gil_scoped_release released;
    model = gguf::read_model(path_bytes);
  }
  nb::dict metadata;
  nb::dict offsets;
  for (gguf::Entry& entry : model.metadata) {
    const nb::object key = to_text(entry.key);
    metadata[key] = std::visit(ToPython{}, entry.value);
    offsets[key] = entry.value_offset;
  }
  nb::list tensors;
  for (const gguf::ModelTensor& tensor : model.tensors) tensors.append(tensor_tuple(tensor));
  nb::list shards;
  for (const gguf::Shard& shard : model.shards) shards.append(shard_tuple(shard));
  nb::dict result;
  result["version"] = model.version;
  result["metadata"] = metadata;
  result["metadata_offsets"] = offsets;
  result["tensors"] = tensors;
  result["shards"] = shards;
  return result;
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("read_gguf", read_gguf, nb::arg("path"),
        R"(Read and check the header of a GGUF model, all shards of it.

Returns a dict: version (int); metadata (dict of int, float, bool, str, list[str] or NumPy array);
metadata_offsets (byte offset of each value in the first shard); tensors (list of name, type name,
shape, shard index, absolute offset, bytes); shards (list of path, device, inode, bytes, mtime_ns,
header bytes).

Raises InvalidModelError or UnsupportedError.)");
}

}  // namespace ellm
