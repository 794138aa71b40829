#include "bindings/translate_error.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <string>

#include "base/error.h"

namespace nb = nanobind;

namespace ellm {
namespace {

// Paths keep the bytes of the file system; messages may hold anything.
nb::object path_text(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), path.size()));
}

nb::object message_text(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), text.size(), "backslashreplace"));
}

// The message with the path decoded as a path, whatever bytes it has.
nb::object full_message(const Error& error) { return path_text(error.what()); }

nb::object to_python(const Error& error) {
  const nb::object errors = nb::module_::import_("ellm.errors");
  switch (error.kind) {
    case ErrorKind::kInvalidModel: {
      const nb::object offset = error.offset ? nb::object(nb::int_(*error.offset)) : nb::none();
      return errors.attr("InvalidModelError")(
          message_text(error.what_failed), nb::arg("path") = path_text(error.path),
          nb::arg("offset") = offset, nb::arg("found") = message_text(error.found),
          nb::arg("expected") = message_text(error.expected));
    }
    case ErrorKind::kCapacity:
      return errors.attr("CapacityError")(full_message(error), nb::arg("needed") = error.needed,
                                          nb::arg("available") = error.available);
    case ErrorKind::kUnsupported: return errors.attr("UnsupportedError")(full_message(error));
    case ErrorKind::kConfig: return errors.attr("ConfigError")(full_message(error));
    case ErrorKind::kAborted: return errors.attr("AbortedError")(full_message(error));
    case ErrorKind::kInternal: break;
  }
  return errors.attr("NativeError")(full_message(error));
}

void translate(const std::exception_ptr& raised, void*) {
  try {
    std::rethrow_exception(raised);
  } catch (const Error& error) {
    try {
      const nb::object exception = to_python(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    } catch (nb::python_error& failure) {
      failure.restore();  // such as a MemoryError while the message was made
    }
  }
}

}  // namespace

void register_error_translation() { nb::register_exception_translator(translate); }

}  // namespace ellm
