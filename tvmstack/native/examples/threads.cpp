// threads MODEL [WORKERS]: a fixed set of workers, each with a session of one thread: the way a server uses a model.
//
// c++ -std=c++17 threads.cpp -I../include -L../lib -ltvmstack -pthread -Wl,-rpath,'$ORIGIN/../lib' -o threads
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <tvmstack.hpp>
#include <vector>

namespace {

// Zeros for an input; dynamic dimensions are 1.
struct Tensor {
  explicit Tensor(const tvmstack_tensor_info& info) : shape(info.shape, info.shape + info.ndim) {
    size_t bytes = info.dtype.bits / 8;
    for (int64_t& dim : shape) bytes *= static_cast<size_t>(dim = dim < 0 ? 1 : dim);
    data.resize(bytes);
    view = {data.data(), {kDLCPU, 0}, info.ndim, info.dtype, shape.data(), nullptr, 0};
  }
  std::vector<int64_t> shape;
  std::vector<unsigned char> data;
  DLTensor view;
};

void Work(const tvmstack::Model& model, int number) {
  try {
    tvmstack::Session session(model, 1);
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<const DLTensor*> feed;
    for (const tvmstack_tensor_info& info : model.Inputs()) {
      tensors.push_back(std::make_unique<Tensor>(info));
      feed.push_back(&tensors.back()->view);
    }
    for (int i = 0; i < 100; ++i) session.Run(feed);
    const DLTensor& output = session.Output(0);
    std::printf("worker %d: 100 runs, first output has %d dimensions\n", number, output.ndim);
  } catch (const tvmstack::Error& error) {
    std::fprintf(stderr, "worker %d: %s\n", number, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: threads MODEL [WORKERS]\n"), 2;
  try {
    const tvmstack::Model model(argv[1]);
    std::vector<std::thread> workers;
    for (int i = 0; i < (argc > 2 ? std::atoi(argv[2]) : 2); ++i) workers.emplace_back(Work, std::cref(model), i);
    for (std::thread& worker : workers) worker.join();
  } catch (const tvmstack::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.status;
  }
  return 0;
}
