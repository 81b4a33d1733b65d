// Reading JSON through tvm_ffi's parser: a missing field or one of another kind is a JsonError that names it.
#pragma once
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tvmstack {

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  static Json Parse(const std::string& text);

  bool Has(const char* key) const;
  Json At(const char* key) const;
  // The field, or `otherwise` where it is missing.
  std::string TextOr(const char* key, const std::string& otherwise) const;
  std::string Text() const;
  int64_t Integer() const;
  bool IsText() const;
  std::vector<Json> Items() const;
  // Names and texts of an object; values of other kinds as JSON.
  std::vector<std::pair<std::string, std::string>> Fields() const;
  std::string Dump() const;

 private:
  Json(tvm::ffi::Any value, std::string name) : value_(std::move(value)), name_(std::move(name)) {}
  tvm::ffi::json::Object Object() const;
  [[noreturn]] void Refuse(const char* wanted) const;

  tvm::ffi::Any value_;
  std::string name_;  // for messages
};

}  // namespace tvmstack
