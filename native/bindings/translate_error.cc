#include "bindings/translate_error.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <string>

#include "base/error.h"

namespace nb = nanobind;

namespace ellm {
namespace {

// Paths keep the bytes of the file system; messages may hold anything.
nb::object PathText(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), path.size()));
}

nb::object MessageText(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), text.size(), "backslashreplace"));
}

// The message with the path decoded as a path, whatever bytes it has.
nb::object FullMessage(const Error& error) { return PathText(error.what()); }

nb::object ToPython(const Error& error) {
  const nb::object errors = nb::module_::import_("ellm.errors");
  switch (error.kind) {
    case ErrorKind::kInvalidModel: {
      const nb::object offset = error.offset ? nb::object(nb::int_(*error.offset)) : nb::none();
      return errors.attr("InvalidModelError")(
          MessageText(error.what_failed), nb::arg("path") = PathText(error.path),
          nb::arg("offset") = offset, nb::arg("found") = MessageText(error.found),
          nb::arg("expected") = MessageText(error.expected));
    }
    case ErrorKind::kCapacity:
      return errors.attr("CapacityError")(FullMessage(error), nb::arg("needed") = error.needed,
                                          nb::arg("available") = error.available);
    case ErrorKind::kUnsupported:
      return errors.attr("UnsupportedError")(FullMessage(error));
    case ErrorKind::kConfig:
      return errors.attr("ConfigError")(FullMessage(error));
    case ErrorKind::kAborted:
      return errors.attr("AbortedError")(FullMessage(error));
    case ErrorKind::kInternal:
      break;
  }
  return errors.attr("NativeError")(FullMessage(error));
}

void Translate(const std::exception_ptr& raised, void*) {
  try {
    std::rethrow_exception(raised);
  } catch (const Error& error) {
    try {
      const nb::object exception = ToPython(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    } catch (nb::python_error& failure) {
      failure.restore();  // such as a MemoryError while the message was made
    }
  }
}

}  // namespace

void RegisterErrorTranslation() { nb::register_exception_translator(Translate); }

}  // namespace ellm
