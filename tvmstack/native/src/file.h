// An artifact's file: opened once, so that what is checked is what is loaded; its ELF sections; its memory.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace tvmstack {

// Where some bytes are in the file.
struct Span {
  uint64_t offset = 0, size = 0;
  uint64_t End() const { return offset + size; }
};

class File {
 public:
  // Throws an artifact error that names the file: missing, a folder, not readable.
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  // The folder it is in, links followed.
  std::string folder() const;
  int descriptor() const { return descriptor_; }
  uint64_t size() const { return size_; }

  void Read(uint64_t offset, void* to, uint64_t size) const;
  std::string Read(const Span& span) const;
  // The sections of an ELF64 file by name; only its tables are read. Throws where it is none, or cut short.
  std::map<std::string, Span> Sections() const;
  // Map the whole file, private to this process: pages that nobody writes to stay shared. Lives as long as the file.
  uint8_t* Map();

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  void* memory_ = nullptr;
};

}  // namespace tvmstack
