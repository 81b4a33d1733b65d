// What a board says of itself, as a JSON object: versions, CPU, clocks, temperature. Python reads it in board/facts.py.
#pragma once
#include <dirent.h>
#include <sys/utsname.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "../../native/src/cpu.h"

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
