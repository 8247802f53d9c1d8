// Measures the distance of the demo's residual networks from those of torchvision, and of N devices from one. Prints a
// table of measured and allowed distances.
//
//   resnet_parity [--device cpu|cuda] [--references DIR] [--full DIR] [--workers N]
//
// demos/resnet/tools/resnet_reference.py writes the references. DIR of --references contains resnet18 and resnet50,
// which are small. The default are those in this repository. DIR of --full is the folder of a full one. Exit code: 0,
// or 1 if a distance is too large, or 2 for bad options.

#include <getopt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/demos/resnet/reference.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/demos/resnet/tested_network.hpp"

namespace resnet::testing {
namespace {

constexpr Distances kAllowed{.logits = 1e-4, .loss = 1e-4, .gradient = 1e-3};
constexpr double kAllowedOfTorchsWorst = 2;
constexpr double kAllowedStatistics = 1e-5;
constexpr double kAllowedCurve = 1e-2;

struct Options {
  Place place = Place::kCpu;
  std::string references = carried_references();
  std::string full;
  int workers = 3;  // the largest number that is compared with one
};

/// Prints a line for each distance.
class Table {
 public:
  Table() { std::printf("%-72s %10s %10s  %s\n", "relative distance of", "measured", "allowed", ""); }
  void add(const std::string& what, double measured, double allowed, const std::string& remark = "") {
    const bool is_good = measured <= allowed;  // false if it is not a number
    is_all_good_ = is_all_good_ && is_good;
    std::printf("%-72s %10.2e %10.2e  %s%s\n", what.c_str(), measured, allowed, is_good ? "ok" : "MISSED",
                remark.empty() ? "" : ("  (" + remark + ")").c_str());
    std::fflush(stdout);
  }
  bool is_all_good() const { return is_all_good_; }

 private:
  bool is_all_good_ = true;
};

std::string name_of(const Architecture& architecture) { return "ResNet-" + std::to_string(architecture.spec.depth); }

std::string in_digits(double distance) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2e", distance);
  return text.data();
}

std::string torchs_own(double distance) { return "torch's own float32: " + in_digits(distance); }

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

/// The largest relative distance of ten losses from the reference.
double curve_distance(TestedNetwork& network, const Computed& reference, double first_loss) {
  double worst = relative(first_loss, reference.losses[0]);
  std::vector<float> params = reference_params(reference.architecture);
  std::vector<float> momentum(params.size());
  for (std::size_t step = 1; step < reference.losses.size(); ++step) {
    const std::vector<float> gradient = network.gradient();
    for (std::size_t i = 0; i < params.size(); ++i) {
      momentum[i] = kReferenceMomentum * momentum[i] + gradient[i];
      params[i] -= kReferenceRate * momentum[i];
    }
    network.set_params(params);
    const double distance = relative(network.step(), reference.losses[step]);
    if (!(distance <= worst)) worst = distance;  // a value that is not a number is the worst, and remains so
    if (std::isnan(worst)) break;
  }
  return worst;
}

void add_gradient(Table& table, const std::string& what, const Reference& reference,
                  const std::vector<float>& gradient) {
  table.add(what + "gradient", gradient_distance(reference, gradient), kAllowed.gradient,
            torchs_own(reference.float32.gradient));
}

/// Rounding decides whether single ReLUs pass, in torch's float32 and in ours. In the whole gradient, this has little
/// effect. In one array, the effect may exceed what is allowed for the whole. Which ReLUs these are is chance in both.
/// So the worst array may have twice the distance of torch's own worst array.
void add_gradient(Table& table, const std::string& what, const FullReference& reference,
                  const std::vector<float>& gradient) {
  table.add(what + "gradient", relative_error(gradient, reference.gradient), kAllowed.gradient,
            torchs_own(reference.float32.gradient));
  const ArrayDistance worst = worst_array(reference.architecture, gradient, reference.gradient);
  const ArrayDistance own = torch_worst_array(reference);
  table.add(what + "gradient, worst array (" + worst.name + ")", worst.distance,
            std::max(kAllowed.gradient, kAllowedOfTorchsWorst * own.distance),
            torchs_own(own.distance) + ", " + own.name);
}

/// `AnyReference`: Reference or FullReference.
template <typename AnyReference>
void check_float32(Table& table, const std::string& name, Place place, const AnyReference& reference) {
  const auto network = make_network(place, reference.architecture, reference.rows, Precision::kFloat32);
  const std::string what = name + ", float32: ";
  table.add(what + "logits", relative_error(network->logits(), reference.logits), kAllowed.logits,
            torchs_own(reference.float32.logits));
  const double loss = network->step();
  table.add(what + "loss", relative(loss, reference.losses[0]), kAllowed.loss, torchs_own(reference.float32.loss));
  add_gradient(table, what, reference, network->gradient());
  table.add(what + "running statistics", relative_error(network->statistics(), reference.moved_statistics),
            kAllowedStatistics);
  table.add(what + "losses of ten steps", curve_distance(*network, reference, loss), kAllowedCurve);
}

/// Our bfloat16 may differ from our float32 as much as torch's autocast differs from its float32. The distance of a
/// loss may be small by chance, so at least the distance of the logits is allowed for it.
void check_bfloat16(Table& table, const std::string& name, const Computed& reference) {
  const auto exact = make_network(Place::kCuda, reference.architecture, reference.rows, Precision::kFloat32);
  const auto narrow = make_network(Place::kCuda, reference.architecture, reference.rows, Precision::kBfloat16);
  const Distances& autocast = reference.autocast;
  const std::string what = name + ", bfloat16 from float32: ";
  table.add(what + "logits", relative_error(narrow->logits(), exact->logits()), autocast.logits);
  table.add(what + "loss", relative(narrow->step(), exact->step()), std::max(autocast.loss, autocast.logits),
            "autocast's loss: " + in_digits(autocast.loss) + ", its logits: " + in_digits(autocast.logits) +
                "; the larger is allowed");
  table.add(what + "gradient", relative_error(narrow->gradient(), exact->gradient()), autocast.gradient);
}

void say_networks(const std::string& name, const Computed& reference) {
  std::printf("references of %s, networks: %s\n", name.c_str(), reference.networks.c_str());
}

std::string devices_of(Place place, int count) {
  std::string devices;
  for (int i = 0; i < count; ++i) {
    if (i != 0) devices.append(",");
    devices.append(place == Place::kCpu ? "cpu" : "cuda").append(std::to_string(i));
  }
  return devices;
}

/// 2, 4 and 8 devices, as far as there are that many, and all devices.
std::vector<int> counts_to(int workers) {
  std::vector<int> counts;
  for (const int count : {2, 4, 8}) {
    if (count < workers) counts.push_back(count);
  }
  if (workers > 1) counts.push_back(workers);
  return counts;
}

void check_devices(Table& table, const Options& options) {
  const std::string one = devices_of(options.place, 1);
  for (const int count : counts_to(options.workers)) {
    const std::string many = devices_of(options.place, count);
    table.add("parameters after ten steps on " + many + " from " + one,
              distance_of_trained_params(many, one, {.learning_rate = kTestedRate}), kSameParams);
  }
  if (options.workers == 1) {
    std::printf("NOT MEASURED, there is one device: parameters after ten steps on N devices from one\n");
  }
}

bool run(const Options& options) {
  // Loads all references first, so that a missing one is reported at once.
  const Reference small18("resnet18", options.references);
  const Reference small50("resnet50", options.references);
  std::optional<FullReference> full;
  if (!options.full.empty()) full.emplace(options.full);

  say_networks("small resnet18", small18);
  say_networks("small resnet50", small50);
  if (full) say_networks(name_of(full->architecture), *full);
  Table table;
  check_float32(table, "small resnet18", options.place, small18);
  check_float32(table, "small resnet50", options.place, small50);
  if (full) check_float32(table, name_of(full->architecture), options.place, *full);
  if (options.place == Place::kCuda) {
    check_bfloat16(table, "small resnet18", small18);
    check_bfloat16(table, "small resnet50", small50);
    if (full) check_bfloat16(table, name_of(full->architecture), *full);
  }
  check_devices(table, options);
  return table.is_all_good();
}

std::optional<Options> parse_options(int argc, char** argv) {
  constexpr std::array known{
      option{"device", required_argument, nullptr, 'd'}, option{"references", required_argument, nullptr, 'r'},
      option{"full", required_argument, nullptr, 'f'}, option{"workers", required_argument, nullptr, 'n'}, option{}};
  Options options;
  for (int chosen = 0; (chosen = getopt_long(argc, argv, "", known.data(), nullptr)) != -1;) {
    const std::string text = optarg == nullptr ? "" : optarg;
    if (chosen == 'd' && (text == "cpu" || text == "cuda")) options.place = text == "cpu" ? Place::kCpu : Place::kCuda;
    else if (chosen == 'r') options.references = text;
    else if (chosen == 'f') options.full = text;
    else if (chosen == 'n' && std::atoi(optarg) > 0) options.workers = std::atoi(optarg);
    else return std::nullopt;
  }
  if (optind < argc) return std::nullopt;
  return options;
}

}  // namespace
}  // namespace resnet::testing

int main(int argc, char** argv) {
  const auto options = resnet::testing::parse_options(argc, argv);
  if (!options) {
    std::fprintf(
        stderr, "usage: resnet_parity [--device cpu|cuda] [--references DIR] [--full DIR] [--workers N, at least 1]\n");
    return 2;
  }
  try {
    return resnet::testing::run(*options) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resnet_parity: %s\n", error.what());
    return 1;
  }
}
