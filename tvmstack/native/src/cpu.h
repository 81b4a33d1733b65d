// What the kernel says of the CPU: one source for the board server and for the check of an artifact.
#pragma once
#include <sys/auxv.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace tvmstack {

inline std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value after `field :` of the first CPU in /proc/cpuinfo; empty where it has none.
inline std::string CpuInfo(const std::string& field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, field.size(), field) != 0) continue;
    if (line.find_first_not_of(" \t", field.size()) == colon) return line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

// The CPU's features by the kernel's names. On ARM the auxiliary vector is asked: an emulator answers for the guest
// there, while its /proc/cpuinfo may be the host's.
inline std::string CpuFeatures() {
#if defined(__aarch64__)
  struct Bit { int vector, bit; const char* name; };
  static const Bit bits[] = {{0, 1, "asimd"}, {0, 9, "fphp"}, {0, 20, "asimddp"}, {0, 22, "sve"},
                             {1, 1, "sve2"},  {1, 13, "i8mm"}, {1, 14, "bf16"}};
  const unsigned long found[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  std::string names;
  for (const Bit& b : bits)
    if (found[b.vector] >> b.bit & 1) names += std::string(names.empty() ? "" : " ") + b.name;
  return names;
#else
  return CpuInfo("flags");
#endif
}

}  // namespace tvmstack
