#include "gguf/weight_format.h"

namespace ellm::gguf {
namespace {

struct TypeName {
  uint32_t id;
  const char* name;
};

// Source: ggml.h `enum ggml_type` and ggml-common.h `block_*`.
constexpr WeightFormat kWeightFormats[] = {
    {0, "f32", 1, 4},       {1, "f16", 1, 2},       {30, "bf16", 1, 2},     {2, "q4_0", 32, 18},
    {3, "q4_1", 32, 20},    {6, "q5_0", 32, 22},    {7, "q5_1", 32, 24},    {8, "q8_0", 32, 34},
    {12, "q4_k", 256, 144}, {13, "q5_k", 256, 176}, {14, "q6_k", 256, 210},
};

constexpr TypeName kUnsupported[] = {
    {9, "q8_1"},     {10, "q2_k"},  {11, "q3_k"},   {15, "q8_k"},  {16, "iq2_xxs"}, {17, "iq2_xs"},
    {18, "iq3_xxs"}, {19, "iq1_s"}, {20, "iq4_nl"}, {21, "iq3_s"}, {22, "iq2_s"},   {23, "iq4_xs"},
    {24, "i8"},      {25, "i16"},   {26, "i32"},    {27, "i64"},   {28, "f64"},     {29, "iq1_m"},
    {34, "tq1_0"},   {35, "tq2_0"}, {39, "mxfp4"},  {40, "nvfp4"}, {41, "q1_0"},
};

constexpr TypeName kRemoved[] = {
    {4, "q4_2"},      {5, "q4_3"},        {31, "q4_0_4_4"},   {32, "q4_0_4_8"},
    {33, "q4_0_8_8"}, {36, "iq4_nl_4_4"}, {37, "iq4_nl_4_8"}, {38, "iq4_nl_8_8"},
};

template <size_t n>
const char* find(const TypeName (&names)[n], uint32_t id) {
  for (const TypeName& entry : names) {
    if (entry.id == id) return entry.name;
  }
  return nullptr;
}

}  // namespace

const WeightFormat* find_weight_format(uint32_t id) {
  for (const WeightFormat& format : kWeightFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

const char* unsupported_type_name(uint32_t id) { return find(kUnsupported, id); }

const char* removed_type_name(uint32_t id) { return find(kRemoved, id); }

std::string supported_type_names() {
  std::string names;
  for (const WeightFormat& format : kWeightFormats) {
    if (!names.empty()) names += ", ";
    names += format.name;
  }
  return names;
}

}  // namespace ellm::gguf
