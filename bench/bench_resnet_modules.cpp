// Measures a training step of ResNet-50 of LibTorch's modules, channels last and in bfloat16: loss, gradient, all_reduce and
// update by Momentum. The images are already on the device, as in torch_resnet.py. Two steps are in flight. For each mode
// and number of rows, it prints a JSON line.
//
//   syncrun -n 2 bench_resnet_modules --rows 256,32 --mode replayed,plain

#include <getopt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <vector>

#include "bench/resnet_modules.hpp"
#include "bench/steps_in_flight.hpp"

namespace {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;
using Net = resnet_modules::ResNet50;

struct Options {
  std::vector<std::int64_t> rows{256};  // of each device
  std::vector<std::string> modes{"replayed"};
  int steps = 20;  // of a sample
};

std::optional<Options> parse_options(int argc, char** argv) {
  static const option kOptions[] = {{"rows", required_argument, nullptr, 'r'},
                                    {"mode", required_argument, nullptr, 'o'},
                                    {"steps", required_argument, nullptr, 's'},
                                    {nullptr, 0, nullptr, 0}};
  Options options;
  for (int chosen = 0; (chosen = ::getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (chosen == 'o') options.modes = benchmark_steps::split(optarg);
    else if (chosen == 's') options.steps = std::atoi(optarg);
    else if (chosen == 'r') options.rows = benchmark_steps::numbers(optarg);
    else return std::nullopt;
  }
  return options;
}

torch::Tensor loss(Net& net, sr::Scattered<const std::int64_t, 1> labels) {
  const lt::Autocast autocast(torch::kBFloat16);
  return torch::cross_entropy_loss(net.forward(labels.shape(0)), lt::tensor(labels));
}

template <lt::Replay kReplay>
void measure(sr::Session& session, const Options& options, const std::string& mode) {
  const std::int64_t most = *std::max_element(options.rows.begin(), options.rows.end());
  const auto net = session.replicate<lt::Replica<Net>>(std::uint64_t{1}, most);
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Momentum, loss, lt::BackwardOptions{.replay = kReplay}>(session, net, params);
  auto labels = session.data<std::int64_t, 1>({most * session.world_size()});
  for (std::int64_t i = 0; i < labels.rows(); ++i) labels.write()[i] = i * 37 % resnet_modules::kClasses;
  for (const std::int64_t rows : options.rows) {
    const std::int64_t all_rows = rows * session.world_size();
    const sr::Momentum rule{.learning_rate = 1e-3, .momentum = 0.9, .weight_decay = 1e-4};
    double last_loss = 0;
    const auto times = benchmark_steps::measure([&] { return step.async(labels, rule, {.batch = all_rows}); },
                                                options.steps, last_loss);
    std::printf(
        "{\"bench\":\"resnet_step\",\"impl\":\"syncrun\",\"variant\":\"%s\",\"devices\":%d,\"batch\":%lld,"
        "\"dtype\":\"bfloat16\",\"median_us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f,\"images_per_s\":%.1f,"
        "\"last_loss\":%.6f}\n",
        mode.c_str(), session.world_size(), static_cast<long long>(rows), times.median, times.least, times.most,
        static_cast<double>(all_rows) / times.median * 1e6, last_loss);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr,
                 "usage: [syncrun -n N] bench_resnet_modules [--rows ROWS_PER_DEVICE,...] [--mode replayed,plain]\n"
                 "                            [--steps N]\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) {
    for (const std::string& mode : options->modes) {
      if (mode == "replayed") measure<lt::Replay::if_possible>(session, *options, mode);
      else measure<lt::Replay::never>(session, *options, mode);
    }
  });
}
