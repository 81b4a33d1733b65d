// HMAC (RFC 2104) over SHA-256, for the shared secret of a board; no library of that kind is on a bare board.
#pragma once
#include <string>

#include "../../native/src/sha256.h"

namespace tvmstack {

// HMAC-SHA-256 of `text` under `secret`, as hex.
inline std::string HmacHex(const std::string& secret, const std::string& text) {
  std::string key = secret.size() > 64 ? Sha256::Of(secret) : secret;
  key.resize(64, '\0');
  std::string inner, outer;
  for (char c : key) {
    inner += static_cast<char>(c ^ 0x36);
    outer += static_cast<char>(c ^ 0x5c);
  }
  return Hex(Sha256::Of(outer + Sha256::Of(inner + text)));
}

// Whether two texts are equal, in a time that does not tell where they differ.
inline bool SameText(const std::string& a, const std::string& b) {
  unsigned difference = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace tvmstack
