// What a board says of itself, as a JSON object: versions, CPU, clocks, temperature. Python reads it in board/facts.py.
#pragma once
#include <dirent.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#ifndef TVMSTACK_TVM_VERSION
#error "define TVMSTACK_TVM_VERSION: the version of the libtvm_runtime that this server is linked to"
#endif

namespace tvmstack {

constexpr int kProtocol = 1;

inline std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < 32 || c > 126 ? '?' : static_cast<char>(c);
  }
  return out + '"';
}

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

inline long CacheBytes(int level) {
  for (int index = 0; index < 8; ++index) {
    std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    if (FirstLine(folder + "type") == "Instruction" || FirstLine(folder + "level") != std::to_string(level)) continue;
    std::istringstream text(FirstLine(folder + "size"));
    long size = 0;
    char unit = 'B';
    text >> size >> unit;
    return size * (unit == 'K' ? 1L << 10 : unit == 'M' ? 1L << 20 : 1);
  }
  return 0;
}

// The hottest thermal zone in degrees Celsius, or "null" where there is none.
inline std::string Temperature() {
  long hottest = 0;
  for (int zone = 0; zone < 32; ++zone) {
    std::string text = FirstLine("/sys/class/thermal/thermal_zone" + std::to_string(zone) + "/temp");
    if (!text.empty()) hottest = std::max(hottest, atol(text.c_str()));
  }
  return hottest ? std::to_string(hottest / 1000.0) : "null";
}

inline double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

// The CPU's model; ARM kernels give a part number instead, and an emulator would give the host's model.
inline std::string CpuModel() {
#if defined(__aarch64__)
  return "";
#else
  return CpuInfo("model name");
#endif
}

// Everything that does not change while the server runs; `Facts` adds what does.
inline std::string FixedFacts(const std::string& name) {
  utsname system;
  uname(&system);
  TVMFFIVersion ffi;
  TVMFFIGetVersion(&ffi);
  std::ostringstream out;
  out << "\"protocol\": " << kProtocol << ", \"server\": \"native\", \"name\": " << Quoted(name)
      << ", \"arch\": " << Quoted(system.machine) << ", \"tvm\": " << Quoted(TVMSTACK_TVM_VERSION) << ", \"ffi\": \""
      << ffi.major << '.' << ffi.minor << '.' << ffi.patch << "\", \"cpu\": " << Quoted(CpuModel())
      << ", \"part\": " << Quoted(CpuInfo("CPU part")) << ", \"features\": " << Quoted(CpuFeatures())
      << ", \"cores\": " << std::thread::hardware_concurrency() << ", \"caches\": [" << CacheBytes(1) << ", "
      << CacheBytes(2) << ", " << CacheBytes(3) << "]";
  return out.str();
}

inline std::string Facts(const std::string& fixed, const std::string& proof) {
  std::ostringstream out;
  out.precision(17);
  out << '{' << fixed << ", \"monotonic_s\": " << Seconds(CLOCK_MONOTONIC) << ", \"time_s\": "
      << Seconds(CLOCK_REALTIME) << ", \"temperature_c\": " << Temperature() << ", \"proof\": " << Quoted(proof) << '}';
  return out.str();
}

}  // namespace tvmstack
