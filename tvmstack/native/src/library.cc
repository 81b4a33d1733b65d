#include "library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "error.h"

namespace tvmstack {

namespace {

std::string PathOf(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] ? map->l_name : asked;
}

std::string LoaderWords() {
  const char* words = dlerror();
  return words ? words : "the loader gives no reason";
}

void* TryOpen(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); }

}  // namespace

std::string OwnFolder() {
  Dl_info info = {};
  if (!dladdr(reinterpret_cast<void*>(&OwnFolder), &info) || !info.dli_fname) return ".";
  char real[PATH_MAX];
  const std::string path = realpath(info.dli_fname, real) ? real : info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::vector<std::string> FilesWithPrefix(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> found;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    if (name.compare(0, prefix.size(), prefix) == 0) found.push_back(folder + "/" + name);
  }
  closedir(entries);
  std::sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return found;
}

Library Library::Open(const std::string& path) {
  void* handle = TryOpen(path);
  if (handle == nullptr) throw SetupError(LoaderWords());
  return {handle, PathOf(handle, path)};
}

Library Library::Find(const char* variable, const std::string& prefix, const std::vector<std::string>& folders,
                      const std::vector<std::string>& names) {
  const char* named = std::getenv(variable);
  if (named && named[0]) {
    void* handle = TryOpen(named);
    if (handle == nullptr) throw SetupError(std::string("$") + variable + " cannot be opened: " + LoaderWords());
    return {handle, PathOf(handle, named)};
  }
  std::string looked;
  for (const std::string& folder : folders) {
    if (folder.empty()) continue;
    for (const std::string& file : FilesWithPrefix(folder, prefix)) {
      if (void* handle = TryOpen(file)) return {handle, PathOf(handle, file)};
      throw SetupError(file + " cannot be opened: " + LoaderWords());
    }
    looked += folder + ", ";
  }
  for (const std::string& name : names)
    if (void* handle = TryOpen(name)) return {handle, PathOf(handle, name)};
  throw SetupError("there is no " + prefix + " in " + looked + "nor on the loader's path; $" + variable +
                   " may name the file");
}

void* Library::SymbolOrNull(const char* name) const { return dlsym(handle_, name); }

void* Library::Symbol(const char* name) const {
  void* symbol = SymbolOrNull(name);
  if (symbol == nullptr) throw SetupError(path_ + " has no function " + name);
  return symbol;
}

}  // namespace tvmstack
