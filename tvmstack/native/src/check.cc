#include "check.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "cpu.h"
#include "error.h"
#include "levels.h"
#include "sha256.h"

namespace tvmstack {

namespace {

constexpr uint64_t kBlock = 4 << 20, kChunk = 256 << 10, kHeader = 64, kSeal = 32;

void Feed(const File& file, const Span& span, Sha256* state) {
  std::vector<char> buffer(std::min(kChunk, span.size));
  for (uint64_t at = span.offset; at < span.End();) {
    const uint64_t size = std::min(kChunk, span.End() - at);
    file.Read(at, buffer.data(), size);
    state->Update(buffer.data(), size);
    at += size;
  }
}

std::string BlockDigest(const File& file, const Span& block) {
  Sha256 state;
  Feed(file, block, &state);
  return state.Digest();
}

// Call `work(i)` for each i below `count`, on as many threads as there are cores; rethrows what one threw.
template <typename Work>
void InParallel(size_t count, Work work) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex lock;
  auto loop = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      std::lock_guard<std::mutex> guard(lock);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min(count, static_cast<size_t>(PhysicalCores()));
  while (threads.size() + 1 < wanted) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// The digest of a part: of its blocks' digests.
std::string SpanDigest(const File& file, const Span& span) {
  std::vector<std::string> blocks((span.size + kBlock - 1) / kBlock);
  InParallel(blocks.size(), [&](size_t i) {
    const uint64_t start = span.offset + i * kBlock;
    blocks[i] = BlockDigest(file, {start, std::min(kBlock, span.End() - start)});
  });
  Sha256 state;
  for (const std::string& digest : blocks) state.Update(digest.data(), digest.size());
  return Hex(state.Digest());
}

// The digest of what is before `end` and in none of the parts.
std::string SealOf(const File& file, std::vector<Span> parts, uint64_t end) {
  std::sort(parts.begin(), parts.end(), [](const Span& a, const Span& b) { return a.offset < b.offset; });
  Sha256 state;
  uint64_t at = 0;
  parts.push_back({end, 0});
  for (const Span& part : parts) {
    if (part.offset > at) Feed(file, {at, part.offset - at}, &state);
    at = std::max(at, part.End());
  }
  return state.Digest();
}

[[noreturn]] void Refuse(const File& file, const std::string& reason, const std::string& hint) {
  throw ArtifactError(file.path() + " cannot be loaded: " + reason + (hint.empty() ? "" : ". " + hint));
}

void RequireDigests(const File& file, const Manifest& manifest) {
  const std::vector<std::pair<const char*, Span>> parts = {
      {"library", {kHeader, manifest.library_size - std::min(manifest.library_size, kHeader)}},
      {"weights", manifest.sections.at(kWeights)},
      {"regions", manifest.sections.at(kRegions)}};
  const uint64_t end = file.size() - std::min(file.size(), kSeal);
  std::vector<Span> held = {manifest.sections.at(kManifest)};
  for (const auto& [name, span] : parts) {
    const auto digest = manifest.digests.find(name);
    const bool whole = kHeader <= span.offset && span.offset <= end && span.size <= end - span.offset;
    if (!whole || digest == manifest.digests.end() || SpanDigest(file, span) != digest->second)
      Refuse(file, std::string("its ") + name + " is damaged (another digest)", "Copy or build it again");
    held.push_back(span);
  }
  if (SealOf(file, held, end) != file.Read({end, file.size() - end}))
    Refuse(file, "its frame is damaged (another digest)", "Copy or build it again");
}

std::set<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::set<std::string> words;
  for (std::string word; stream >> word;) words.insert(word);
  return words;
}

// The instruction set level of this machine, as `tvmstack.core.device` names it; kLevels goes from wide to plain.
std::string LevelOf(const std::set<std::string>& features) {
  for (const auto& [name, needs] : kLevels) {
    const std::set<std::string> wanted = Words(needs);
    if (std::includes(features.begin(), features.end(), wanted.begin(), wanted.end())) return name;
  }
  return "generic";
}

void RequireCpu(const File& file, const Manifest& manifest) {
  utsname machine = {};
  uname(&machine);
  if (manifest.arch != machine.machine)
    Refuse(file, "it was built for " + manifest.arch + ", this machine is " + machine.machine, "");
  const std::set<std::string> here = Words(CpuFeatures());
  std::string missing;
  for (const std::string& feature : manifest.features)
    if (!here.count(feature)) missing += (missing.empty() ? "" : ", ") + feature;
  if (!missing.empty())
    Refuse(file, "it was built for " + manifest.mcpu + " and needs CPU features that this machine lacks: " + missing,
           "Compile it with --device cpu:" + LevelOf(here));
}

// "0.27" of "0.27.0.post1": binary compatibility holds within it.
std::string Abi(const std::string& version) { return version.substr(0, version.find('.', version.find('.') + 1)); }

void RequireVersion(const File& file, const Manifest& manifest, const char* key, const char* package,
                    const std::string& here) {
  const auto found = manifest.versions.find(key);
  const std::string built = found == manifest.versions.end() ? "" : found->second;
  if (Abi(built) == Abi(here)) return;
  Refuse(file, std::string("it was built with ") + package + " " + (built.empty() ? "?" : built) + ", installed is " + here,
         built.empty() ? "Build it again" : std::string("Install ") + package + "==" + built);
}

int CgroupQuota() {
  std::istringstream line(FirstLine("/sys/fs/cgroup/cpu.max"));
  double quota = 0, period = 0;
  return line >> quota >> period && period > 0 ? static_cast<int>(std::lround(quota / period)) : 0;
}

}  // namespace

void Require(const File& file, const Manifest& manifest, bool digests) {
  if (digests) RequireDigests(file, manifest);
  RequireCpu(file, manifest);
  RequireVersion(file, manifest, "tvm", "apache-tvm", TVMSTACK_TVM_VERSION);
  RequireVersion(file, manifest, "ffi", "apache-tvm-ffi", TVMSTACK_FFI_VERSION);
}

int PhysicalCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<std::string> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) {
        const std::string name = std::to_string(cpu);
        const std::string siblings = FirstLine("/sys/devices/system/cpu/cpu" + name + "/topology/thread_siblings_list");
        cores.insert(siblings.empty() ? name : siblings);
      }
  const int count = std::max<int>(1, static_cast<int>(cores.size())), quota = CgroupQuota();
  return quota > 0 ? std::min(count, quota) : count;
}

}  // namespace tvmstack
