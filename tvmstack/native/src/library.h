// Shared libraries of vendors and strangers: where they are looked for, and what is said when none is found.
#pragma once
#include <string>
#include <vector>

namespace tvmstack {

// The folder that the library holding this code was loaded from.
std::string OwnFolder();

// The files in `folder` whose name begins with `prefix`, longest name last.
std::vector<std::string> FilesWithPrefix(const std::string& folder, const std::string& prefix);

// An open shared library; stays open for the life of the process, because vendors' threads and handles outlive us.
class Library {
 public:
  // Open a vendor's library: the file that the environment variable `variable` names, else the first that begins with
  // `prefix` in one of `folders`, else what the loader finds under one of `names`. Throws a sentence that says where it
  // was looked for.
  static Library Find(const char* variable, const std::string& prefix, const std::vector<std::string>& folders,
                      const std::vector<std::string>& names);
  // Open one file. Throws the loader's words.
  static Library Open(const std::string& path);

  // A function by its C name. Throws where the library has none.
  template <typename Function>
  void Get(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(Symbol(name));
  }
  void* SymbolOrNull(const char* name) const;
  // The file, as the loader found it.
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* Symbol(const char* name) const;

  void* handle_;
  std::string path_;
};

}  // namespace tvmstack
