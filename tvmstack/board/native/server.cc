// An RPC server for a board without Python. libtvm_runtime holds the whole protocol of a session ("rpc.ServerLoop"); this
// program listens, registers with TVM's tracker, checks the shared secret, and runs each session in a process of its own,
// so that a crash, a hang or a client that vanishes costs a session and not the board.
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "facts.h"
#include "sha256.h"
#include "wire.h"

namespace ffi = tvm::ffi;
using namespace tvmstack;

namespace {

constexpr int kPingMs = 2000, kGraceMs = 500, kHandshakeS = 5;
// The tracker gave our key away and nobody came: after so many pings we offer a new one.
constexpr int kMissedPings = 3;

struct Options {
  std::string host = "127.0.0.1", key, name, tracker_host, address, secret, libraries;
  int port = 9100, last_port = 0, tracker_port = 0, longest_session = 600;
};

Options options;
std::string fixed_facts, work_folder;

// ---- what a client can call beside TVM's own functions

std::string WorkPath(const ffi::String& name) { return work_folder + "/" + std::string(name); }

struct Borrowed {
  void* data;
  void AllocData(DLTensor* tensor) { tensor->data = data; }
  void FreeData(DLTensor*) {}
};

// (file, offset, dtype, dims...) -> a tensor on bytes of an uploaded file: weights travel once, inside the artifact. The
// mapping lives as long as the session.
ffi::Tensor MapTensor(ffi::PackedArgs words) {
  auto file = words[0].cast<ffi::String>();
  int64_t offset = words[1].cast<int64_t>();
  DLDataType type = ffi::StringToDLDataType(words[2].cast<ffi::String>());
  std::vector<int64_t> shape;
  for (int i = 3; i < words.size(); ++i) shape.push_back(words[i].cast<int64_t>());
  static std::string mapped_name;
  static char* image = nullptr;
  static int64_t size = 0;
  std::string path = WorkPath(file);
  if (path != mapped_name) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) TVM_FFI_THROW(ValueError) << "there is no uploaded file " << file;
    void* at = mmap(nullptr, about.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    if (at == MAP_FAILED) TVM_FFI_THROW(ValueError) << "cannot map " << file;
    mapped_name = path, image = static_cast<char*>(at), size = about.st_size;
  }
  int64_t bytes = (type.bits + 7) / 8;
  for (int64_t dim : shape) bytes *= dim;
  if (offset < 0 || bytes < 0 || offset > size - bytes || (bytes && offset % 64))
    TVM_FFI_THROW(ValueError) << "no tensor of " << bytes << " bytes at " << offset << " in " << file;
  return ffi::Tensor::FromNDAlloc(Borrowed{image + offset}, ffi::Shape(shape), type, DLDevice{kDLCPU, 0});
}

// The time of each kernel of a virtual machine since it was last asked for.
struct KernelTimes {
  std::vector<double> starts;
  std::map<std::string, std::pair<double, int>> spent;

  // A VM's instrument: (function, name, before, result, arguments...) -> 0.
  void Hook(ffi::PackedArgs words, ffi::Any* result) {
    double now = Seconds(CLOCK_MONOTONIC);
    *result = 0;
    if (words[2].cast<bool>()) return starts.push_back(Seconds(CLOCK_MONOTONIC));
    auto& [seconds, calls] = spent[words[1].cast<ffi::String>()];
    seconds += now - starts.back();
    ++calls;
    starts.pop_back();
  }

  ffi::String Take() {
    std::ostringstream out;
    out.precision(9);
    for (const auto& [name, row] : spent)
      out << (out.tellp() > 0 ? ", " : "{") << Quoted(name) << ": [" << row.first << ", " << row.second << "]";
    spent.clear();
    return out.str().empty() ? "{}" : out.str() + "}";
  }
};

KernelTimes kernel_times;

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("tvm.rpc.server.workpath", [](ffi::String name) { return ffi::String(WorkPath(name)); })
      .def("tvm.rpc.server.load_module", [](ffi::String name) { return ffi::Module::LoadFromFile(WorkPath(name)); })
      .def("tvmstack.board.facts",
           [](ffi::String nonce) {
             return ffi::String(Facts(fixed_facts, HmacHex(options.secret, "board " + std::string(nonce))));
           })
      .def("tvmstack.board.clock_kernels",
           [](ffi::Module vm) {
             auto hook = [](ffi::PackedArgs words, ffi::Any* result) { kernel_times.Hook(words, result); };
             vm->GetFunction("set_instrument").value()(ffi::Function::FromPacked(hook));
           })
      .def("tvmstack.board.kernel_times", [] { return kernel_times.Take(); })
      .def_packed("tvmstack.board.map_tensor",
                  [](ffi::PackedArgs words, ffi::Any* result) { *result = MapTensor(words); });
}

// ---- the tracker

class Tracker {
 public:
  // Connect where needed and have one offer out; false when the tracker is not there.
  bool Offer() {
    if (fd_ < 0 && !Open()) return false;
    if (!match_.empty()) return true;
    std::random_device random;
    match_ = options.key + ":0." + std::to_string(random()) + std::to_string(random());
    std::string reply;
    return (Ask("[3, " + Quoted(options.key) + ", [" + std::to_string(options.port) + ", " + Quoted(match_) + "], " +
                    Address() + "]", &reply) && reply == "0") || Drop();
  }

  // Between sessions: is the offer still there?
  void Ping() {
    std::string reply;
    if (!Ask("[7]", &reply)) {
      Drop();
    } else if (reply.find(match_) != std::string::npos) {
      missed_ = 0;
    } else if (++missed_ > kMissedPings) {
      Spent();
    }
  }

  // The offer was used.
  void Spent() { match_.clear(), missed_ = 0; }

  const std::string& match() const { return match_; }

 private:
  static std::string Address() { return options.address.empty() ? "null" : Quoted(options.address); }

  bool Open() {
    if ((fd_ = Connect(options.tracker_host, options.tracker_port)) < 0) return false;
    fcntl(fd_, F_SETFD, FD_CLOEXEC);
    LimitWaits(fd_, kHandshakeS);
    int32_t magic = 0;
    std::string reply, info = "[5, {\"key\": " + Quoted("server:" + options.key) + ", \"addr\": [" + Address() + ", " +
                              std::to_string(options.port) + "], \"facts\": {" + fixed_facts + "}}]";
    return (SendNumber(fd_, kTrackerMagic) && ReceiveAll(fd_, &magic, sizeof magic) && magic == kTrackerMagic &&
            Ask(info, &reply)) || Drop();
  }

  bool Ask(const std::string& message, std::string* reply) { return SendText(fd_, message) && ReceiveText(fd_, reply); }

  bool Drop() {
    close(fd_);
    fd_ = -1;
    Spent();
    return false;
  }

  int fd_ = -1, missed_ = 0;
  std::string match_;
};

// ---- sessions

std::string Option(const std::string& words, const std::string& name) {
  size_t at = words.find(" -" + name + "=");
  if (at == std::string::npos) return "";
  at += name.size() + 3;
  return words.substr(at, words.find(' ', at) - at);
}

// Whether the client knows our offer and, where there is one, the secret; *seconds is the longest it may stay.
bool Welcome(int fd, const std::string& match, int* seconds) {
  LimitWaits(fd, kHandshakeS);
  int32_t magic;
  std::string words;
  if (!ReceiveAll(fd, &magic, sizeof magic) || magic != kRpcMagic || !ReceiveText(fd, &words)) return false;
  bool expected = SameText(words.substr(0, words.find(' ')), "client:" + match);
  bool proven = options.secret.empty() || SameText(Option(words, "proof"), HmacHex(options.secret, "client " + match));
  if (!expected || !proven) {
    printf("refused a client: %s\n", expected ? "it does not know the secret" : "it does not know the offer");
    SendNumber(fd, kMismatch);
    return false;
  }
  int asked = atoi(Option(words, "timeout").c_str());
  *seconds = asked > 0 && asked < options.longest_session ? asked : options.longest_session;
  LimitWaits(fd, 0);
  NoticeLoss(fd);
  return SendNumber(fd, kRpcMagic) && SendText(fd, "server:" + options.key);
}

[[noreturn]] void Session(int fd) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  if (chdir(work_folder.c_str())) _exit(1);
  try {
    ffi::Function::GetGlobalRequired("rpc.ServerLoop")(fd);
  } catch (const std::exception& error) {
    fprintf(stderr, "session: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

int64_t NowMs() { return static_cast<int64_t>(Seconds(CLOCK_MONOTONIC) * 1000); }

// Wait for the session's process, and end it when its time is up or its client has gone.
const char* Watch(pid_t child, int fd, int signals, int seconds) {
  int64_t until = NowMs() + seconds * 1000LL;
  bool is_gone = false;
  pollfd watched[2] = {{signals, POLLIN, 0}, {fd, POLLRDHUP, 0}};
  for (int status; waitpid(child, &status, WNOHANG) == 0;) {
    int64_t left = until - NowMs();
    if (left <= 0) {
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return is_gone ? "ended: its client is gone" : "ended: its time was up";
    }
    if (poll(watched, 2, static_cast<int>(left)) <= 0) continue;
    signalfd_siginfo taken;
    if (watched[0].revents && read(signals, &taken, sizeof taken) != sizeof taken) continue;
    if (watched[1].revents) {
      is_gone = true;
      until = std::min(until, NowMs() + kGraceMs);
      watched[1].fd = -1;
    }
  }
  return "ended";
}

void Serve(int fd, int signals, int seconds) {
  const char* scratch = getenv("TMPDIR");
  std::string folder = std::string(scratch && *scratch ? scratch : "/tmp") + "/tvmstack-board-XXXXXX";
  if (!mkdtemp(folder.data())) {
    perror("cannot make a folder for the session");
    return;
  }
  work_folder = folder;
  pid_t child = fork();
  if (child == 0) Session(fd);
  if (child > 0) printf("session %d %s\n", child, Watch(child, fd, signals, seconds));
  auto remove_one = [](const char* path, const struct stat*, int, FTW*) { return remove(path); };
  nftw(folder.c_str(), remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

[[noreturn]] void Loop(int listener, int signals) {
  Tracker tracker;
  while (true) {
    if (options.tracker_port) {
      if (!tracker.Offer()) {
        sleep(1);
        continue;
      }
      pollfd waiting{listener, POLLIN, 0};
      if (poll(&waiting, 1, kPingMs) <= 0) {
        tracker.Ping();
        continue;
      }
    }
    int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), seconds = 0;
    if (fd < 0) continue;
    if (Welcome(fd, options.tracker_port ? tracker.match() : options.key, &seconds)) {
      Serve(fd, signals, seconds);
      tracker.Spent();
    }
    close(fd);
  }
}

// ---- the command line

void Use(const std::string& name, const std::string& value) {
  if (name == "--host") options.host = value;
  else if (name == "--port") options.port = atoi(value.c_str());
  else if (name == "--last-port") options.last_port = atoi(value.c_str());
  else if (name == "--key") options.key = value;
  else if (name == "--name") options.name = value;
  else if (name == "--address") options.address = value;
  else if (name == "--secret-file") options.secret = FirstLine(value);
  else if (name == "--load-library") options.libraries = value;
  else if (name == "--longest-session") options.longest_session = atoi(value.c_str());
  else if (name == "--tracker") {
    size_t colon = value.rfind(':');
    options.tracker_host = value.substr(0, colon);
    options.tracker_port = colon == std::string::npos ? 0 : atoi(value.c_str() + colon + 1);
  } else {
    fprintf(stderr, "unknown option %s\n", name.c_str());
    exit(2);
  }
  if (name == "--secret-file" && options.secret.empty()) {
    fprintf(stderr, "%s is missing or its first line is empty\n", value.c_str());
    exit(2);
  }
}

void LoadLibraries() {
  std::istringstream paths(options.libraries);
  for (std::string path; std::getline(paths, path, ':');) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) continue;
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
}

bool IsLoopback(const std::string& host) { return host.compare(0, 4, "127.") == 0; }

}  // namespace

int main(int count, char** words) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count % 2 == 0) return fprintf(stderr, "every option takes a value\n"), 2;
  for (int i = 1; i < count; i += 2) Use(words[i], words[i + 1]);
  if (options.key.empty()) return fprintf(stderr, "--key is missing: what clients ask the tracker for\n"), 2;
  if (!IsLoopback(options.host) && options.secret.empty())
    return fprintf(stderr, "%s is not loopback, and clients may run any code here: give --secret-file\n",
                   options.host.c_str()), 2;
  char host_name[256] = "board";
  gethostname(host_name, sizeof host_name - 1);
  fixed_facts = FixedFacts(options.name.empty() ? host_name : options.name);
  LoadLibraries();
  setenv("TVM_NUM_THREADS", std::to_string(std::thread::hardware_concurrency()).c_str(), 0);
  setenv("TVM_BIND_THREADS", "0", 0);
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ended, nullptr);
  int signals = signalfd(-1, &ended, SFD_CLOEXEC);
  if (options.last_port < options.port) options.last_port = options.port + 99;
  int listener = Listen(options.host, &options.port, options.last_port);
  if (listener < 0)
    return fprintf(stderr, "cannot listen on %s up to port %d\n", options.host.c_str(), options.last_port), 1;
  printf("serving %s on %s:%d\n", options.key.c_str(), options.host.c_str(), options.port);
  Loop(listener, signals);
}
