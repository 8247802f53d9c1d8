// Elastic averaging, as in Platoon: each device trains its own parameters at its own pace, and exchanges values with a
// shared center. The model is softmax regression on the digits of data/digits (8 x 8 pixels).
//
//   elastic_averaging data/digits

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

constexpr std::int64_t kClasses = 10;

/// The contents of an IDX file of bytes, behind its header of 4 bytes and one number of 4 bytes for each dimension.
std::vector<std::uint8_t> read_idx(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() < 4) throw std::runtime_error("cannot read " + path);
  const std::size_t header = 4 + 4 * static_cast<std::size_t>(bytes[3]);
  return {bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end()};
}

std::vector<float> to_pixels(const std::vector<std::uint8_t>& bytes) {
  const float most = *std::max_element(bytes.begin(), bytes.end());
  std::vector<float> pixels(bytes.size());
  std::transform(bytes.begin(), bytes.end(), pixels.begin(),
                 [most](std::uint8_t byte) { return static_cast<float>(byte) / most; });
  return pixels;
}

std::array<double, kClasses> scores_of(sr::ArrayView<const float, 1> pixels, const double* params) {
  std::array<double, kClasses> scores{};
  for (std::int64_t k = 0; k < kClasses; ++k) {
    const double* const weights = params + k * (pixels.size() + 1);
    scores[static_cast<std::size_t>(k)] = weights[pixels.size()];
    for (std::int64_t i = 0; i < pixels.size(); ++i) scores[static_cast<std::size_t>(k)] += weights[i] * pixels[i];
  }
  return scores;
}

// [functions]
/// A round: some steps of SGD, each on one image. Every device begins with other images.
void train(sr::CpuWorker& worker, sr::Local<double, 1> params, sr::Broadcast<const float, 2> images,
           sr::Broadcast<const std::uint8_t, 1> labels, std::int64_t round) {
  constexpr std::int64_t kSteps = 100;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t row = (std::int64_t{worker.rank()} * 397 + round * kSteps + step) % images.rows();
    auto scores = scores_of(images[row], params.data());
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    for (std::int64_t k = 0; k < kClasses; ++k) {
      const double error = scores[static_cast<std::size_t>(k)] / sum - (labels[row] == k ? 1 : 0);
      double* const weights = params.data() + k * (images.shape(1) + 1);
      for (std::int64_t i = 0; i < images.shape(1); ++i) weights[i] -= 0.1 * error * images(row, i);
      weights[images.shape(1)] -= 0.1 * error;
    }
  }
}
// [/functions]

sr::Sum<std::int64_t> count_right(sr::Scattered<const float, 2> images, sr::Scattered<const std::uint8_t, 1> labels,
                                  sr::Local<const double, 1> params) {
  std::int64_t right = 0;
  for (std::int64_t row = 0; row < images.rows(); ++row) {
    const auto scores = scores_of(images[row], params.data());
    const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    right += best == labels[row] ? 1 : 0;
  }
  return right;
}

int program(sr::Session& session, int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "data/digits";
  const auto pixels = to_pixels(read_idx(folder + "/digits-train-images-idx3-ubyte"));
  const auto digits = read_idx(folder + "/digits-train-labels-idx1-ubyte");
  const auto rows = static_cast<std::int64_t>(digits.size());
  const std::int64_t size = static_cast<std::int64_t>(pixels.size()) / rows;
  const auto images = session.data(pixels, sr::Shape{rows, size});
  const auto labels = session.data(digits, sr::Shape{rows});

  // [training]
  std::vector<sr::Device> devices;
  for (int rank = 0; rank < session.world_size(); ++rank) devices.push_back(session.device(rank));
  const std::vector<double> zeros(static_cast<std::size_t>(kClasses * (size + 1)));
  const auto center = session.value(zeros, sr::Shape{kClasses * (size + 1)}, devices[0], "center");

  const auto f = session.function(train);
  const auto start = [&](const sr::Round<double>& round) {
    return f.on(round.device).async(round.params, images, labels, round.number);
  };
  const auto after = [](const sr::Round<double>&) { return true; };  // false would end the training
  const auto report = sr::easgd(session, center, devices, start, after, {.moving_rate = 0.3, .rounds = 300});
  // [/training]

  const auto test_pixels = to_pixels(read_idx(folder + "/digits-test-images-idx3-ubyte"));
  const auto test_digits = read_idx(folder + "/digits-test-labels-idx1-ubyte");
  const auto test_rows = static_cast<std::int64_t>(test_digits.size());
  const auto right = session.function(count_right)(session.data(test_pixels, sr::Shape{test_rows, size}),
                                                   session.data(test_digits, sr::Shape{test_rows}), center);
  const bool is_good = static_cast<double>(right) > 0.9 * static_cast<double>(test_rows);
  std::printf("%zu rounds; more than 90 %% of the test images are right: %s\n", report.arrivals.size(),
              is_good ? "yes" : "NO");
  return is_good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.processes = "2"}); }
