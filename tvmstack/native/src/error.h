// The one kind of failure inside the library: a sentence and who must act.
#pragma once
#include <tvmstack.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace tvmstack {

struct Failure : std::runtime_error {
  Failure(tvmstack_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  tvmstack_status status;
};

inline Failure UsageError(const std::string& text) { return {TVMSTACK_USAGE, text}; }
inline Failure SetupError(const std::string& text) { return {TVMSTACK_SETUP, text}; }
inline Failure BackendError(const std::string& text) { return {TVMSTACK_BACKEND, text}; }
inline Failure ArtifactError(const std::string& text) { return {TVMSTACK_ARTIFACT, text}; }

// The last line of a text that is not blank: where TVM's messages say what is wrong.
inline std::string LastLine(std::string text) {
  text.erase(text.find_last_not_of(" \n\t") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// The first line of a text, where vendors' messages say it.
inline std::string FirstLineOf(const std::string& text) {
  const size_t start = text.find_first_not_of(" \n\t");
  return start == std::string::npos ? "" : text.substr(start, text.find('\n', start) - start);
}

// Leave a sentence in a caller's buffer.
inline void Tell(const std::string& text, char* buffer, size_t size) {
  if (size == 0) return;
  const size_t length = text.size() < size ? text.size() : size - 1;
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

}  // namespace tvmstack
