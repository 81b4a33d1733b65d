#include "file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "error.h"

namespace tvmstack {

namespace {

constexpr char kAgain[] = ". Copy or build it again";

std::string NameAt(const std::string& names, uint32_t start) {
  return start < names.size() ? std::string(names.c_str() + start) : "";
}

}  // namespace

File::File(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0 && errno == ENOENT) throw ArtifactError("there is no file " + path);
  struct stat facts;
  if (descriptor_ < 0 || fstat(descriptor_, &facts) != 0) {
    const std::string why = strerror(errno);
    if (descriptor_ >= 0) close(descriptor_);
    throw ArtifactError("cannot read " + path + ": " + why);
  }
  if (!S_ISREG(facts.st_mode)) {
    close(descriptor_);
    throw ArtifactError(path + (S_ISDIR(facts.st_mode) ? " is a folder" : " is no regular file") + ", not an artifact");
  }
  size_ = static_cast<uint64_t>(facts.st_size);
}

File::~File() {
  if (memory_) munmap(memory_, size_);
  close(descriptor_);
}

std::string File::folder() const {
  char real[PATH_MAX];
  const std::string full = realpath(path_.c_str(), real) ? real : path_;
  const size_t slash = full.rfind('/');
  return slash == std::string::npos ? "." : full.substr(0, slash);
}

void File::Read(uint64_t offset, void* to, uint64_t size) const {
  for (uint64_t done = 0; done < size;) {
    const ssize_t got = pread(descriptor_, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ArtifactError("cannot read " + path_ + ": " + strerror(errno));
    if (got == 0) throw ArtifactError(path_ + " is cut short: it ended while it was read" + kAgain);
    done += static_cast<uint64_t>(got);
  }
}

std::string File::Read(const Span& span) const {
  std::string bytes(span.size, '\0');
  Read(span.offset, &bytes[0], span.size);
  return bytes;
}

std::map<std::string, Span> File::Sections() const {
  Elf64_Ehdr header = {};
  Read(0, &header, std::min<uint64_t>(size_, sizeof header));
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    throw ArtifactError(path_ + " is not a shared library: it does not begin as an ELF file");
  if (size_ < sizeof header || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    throw ArtifactError(path_ + " is not a 64-bit little-endian ELF file, or cut short");
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 || header.e_shnum >= SHN_LORESERVE)
    throw ArtifactError(path_ + " is damaged: its ELF header names no section table" + kAgain);
  const uint64_t bytes = header.e_shnum * sizeof(Elf64_Shdr);
  if (header.e_shoff > size_ || bytes > size_ - header.e_shoff || header.e_shstrndx >= header.e_shnum)
    throw ArtifactError(path_ + " is cut short: its section table is missing" + kAgain);
  std::vector<Elf64_Shdr> table(header.e_shnum);
  Read(header.e_shoff, table.data(), bytes);
  for (const Elf64_Shdr& entry : table)
    if (entry.sh_type != SHT_NOBITS && (entry.sh_offset > size_ || entry.sh_size > size_ - entry.sh_offset))
      throw ArtifactError(path_ + " is cut short: a section reaches beyond its end" + kAgain);
  const Elf64_Shdr& last = table[header.e_shstrndx];
  const std::string names = last.sh_type == SHT_NOBITS ? "" : Read({last.sh_offset, last.sh_size});
  std::map<std::string, Span> sections;
  for (const Elf64_Shdr& entry : table)
    if (entry.sh_type != SHT_NOBITS) sections[NameAt(names, entry.sh_name)] = {entry.sh_offset, entry.sh_size};
  return sections;
}

uint8_t* File::Map() {
  if (memory_ == nullptr) {
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor_, 0);
    if (memory == MAP_FAILED) throw SetupError("cannot map " + path_ + ": " + strerror(errno));
    memory_ = memory;
  }
  return static_cast<uint8_t*>(memory_);
}

}  // namespace tvmstack
