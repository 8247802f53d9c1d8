#pragma once

// A session on GPUs with the rows that Mlp learns.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/models.hpp"
#include "tests/support/temporary_folder.hpp"

namespace models {

constexpr std::uint64_t kSeedOnGpus = 7;
constexpr std::int64_t kRowsOnGpus = 64;

/// Standard error of this process is a file while this object exists.
class StandardErrorInFile {
 public:
  StandardErrorInFile() : before_(::dup(STDERR_FILENO)) {
    std::fflush(stderr);
    const int file = ::open(name_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    EXPECT_GE(::dup2(file, STDERR_FILENO), 0);
    ::close(file);
  }
  ~StandardErrorInFile() {
    std::fflush(stderr);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StandardErrorInFile(const StandardErrorInFile&) = delete;
  StandardErrorInFile& operator=(const StandardErrorInFile&) = delete;

  std::string text() const { return text_of(name_); }

 private:
  TemporaryFolder folder_;
  std::string name_ = folder_.at("log");
  int before_;
};

inline void log_text(sr::CudaWorker& worker, std::string_view text) { worker.log(sr::LogLevel::warning, text); }

class SamplesOnGpus : public gpu_test::OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
    if (IsSkipped()) return;
    x_.emplace(session().data(samples_.x, sr::Shape{kRowsOnGpus, kInputs}));
    y_.emplace(session().data(samples_.y, sr::Shape{kRowsOnGpus}));
  }
  const sr::Data<float, 2>& x() const { return *x_; }
  const sr::Data<float, 1>& y() const { return *y_; }
  /// The same rows in this process, on the CPU.
  torch::Tensor inputs() const { return torch::tensor(samples_.x).reshape({kRowsOnGpus, kInputs}); }
  torch::Tensor labels() const { return torch::tensor(samples_.y); }
  /// Runs `work`. Returns what the workers have logged until its end. The master prints it later, so each worker logs one
  /// more text, and this function waits for all of them.
  template <class Work>
  std::string log_of(Work&& work) {
    const StandardErrorInFile file;
    work();
    static int ends = 0;
    const std::string end = "end of part " + std::to_string(++ends) + " of the log";
    session().function(log_text)(end);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      std::string text = file.text();
      int found = 0;
      for (auto at = text.find(end); at != std::string::npos; at = text.find(end, at + 1)) ++found;
      if (found >= world_size()) return text;
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << found << " of " << world_size() << " workers have logged '" << end << "':\n" << text;
        return text;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// A training step of `net` in this process. Returns the loss.
  template <class Net>
  double take_serial_step(Net& net, torch::optim::Optimizer& optimizer) const {
    optimizer.zero_grad();
    const auto loss = mean_square(net.forward(inputs()), labels());
    loss.backward();
    optimizer.step();
    return loss.template item<double>();
  }

 private:
  const Samples samples_ = make_samples(kRowsOnGpus);
  std::optional<sr::Data<float, 2>> x_;
  std::optional<sr::Data<float, 1>> y_;
};

}  // namespace models
