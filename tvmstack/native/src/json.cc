#include "json.h"

namespace tvmstack {

namespace ffi = tvm::ffi;

Json Json::Parse(const std::string& text) {
  ffi::String error;
  ffi::Any value = ffi::json::Parse(ffi::String(text), &error);
  if (!error.empty()) throw JsonError("no JSON: " + std::string(error));
  return Json(value, "the text");
}

void Json::Refuse(const char* wanted) const { throw JsonError("'" + name_ + "' is not " + wanted); }

ffi::json::Object Json::Object() const {
  if (auto object = value_.as<ffi::json::Object>()) return *object;
  Refuse("an object");
}

bool Json::Has(const char* key) const { return Object().count(ffi::String(key)) != 0; }

Json Json::At(const char* key) const {
  ffi::json::Object object = Object();
  auto found = object.find(ffi::String(key));
  if (found == object.end()) throw JsonError("'" + std::string(key) + "' is missing");
  return Json((*found).second, key);
}

std::string Json::TextOr(const char* key, const std::string& otherwise) const {
  return Has(key) ? At(key).Text() : otherwise;
}

bool Json::IsText() const { return value_.as<ffi::String>().has_value(); }

std::string Json::Text() const {
  if (auto text = value_.as<ffi::String>()) return *text;
  Refuse("a text");
}

int64_t Json::Integer() const {
  if (auto number = value_.as<int64_t>()) return *number;
  Refuse("a whole number");
}

std::vector<Json> Json::Items() const {
  auto array = value_.as<ffi::json::Array>();
  if (!array) Refuse("a list");
  std::vector<Json> items;
  for (const ffi::Any& item : *array) items.push_back(Json(item, name_));
  return items;
}

std::vector<std::pair<std::string, std::string>> Json::Fields() const {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& pair : Object()) {
    auto key = pair.first.as<ffi::String>();
    if (!key) Refuse("an object with names");
    const Json value(pair.second, *key);
    fields.emplace_back(*key, value.IsText() ? value.Text() : value.Dump());
  }
  return fields;
}

std::string Json::Dump() const { return ffi::json::Stringify(value_); }

}  // namespace tvmstack
