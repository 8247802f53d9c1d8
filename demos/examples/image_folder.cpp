// Trains a linear classifier on JPEG images in one folder per class. Producers decode the images in the background. The
// functions have bodies for CPU devices only. On a machine with GPUs, run this with `syncrun -n cpu`.
//
//   image_folder --write FOLDER              writes a small data set to try this with
//   image_folder FOLDER [PRODUCERS [SEED]]
//
// The batches depend on the seed and the epoch, and not on the number of producers. So the losses do not either.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/examples/images.hpp"
#include "demos/examples/synthetic_images.hpp"

namespace examples {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kEpochs = 4;
constexpr std::int64_t kInputs = kSide * kSide * 3;

struct LabelledFile {
  fs::path path;
  std::int64_t label;
};

/// The images in FOLDER/CLASS/*.jpg. The labels are the numbers of the classes in the order of their names.
struct ImageList {
  std::vector<fs::path> classes;
  std::vector<LabelledFile> files;

  explicit ImageList(const fs::path& folder) : classes(sorted_folders(folder)) {
    for (std::size_t label = 0; label < classes.size(); ++label) {
      for (const fs::path& file : sorted_files(classes[label])) {
        if (is_jpeg(file.extension())) files.push_back({file, static_cast<std::int64_t>(label)});
      }
    }
    if (files.empty()) {
      throw DataError(folder.string() + ": expected a folder per class with .jpg files in it, got no such file. " +
                      "Pass the folder that has the folders of the classes");
    }
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(files.size()); }
};

/// The batches of all epochs have numbers from 0. Each producer makes every count()-th of them. So the batches and their
/// order do not depend on the number of producers.
void read_images(sr::Producer<Images>& out, const std::string& folder, std::uint64_t seed) {
  const ImageList list(folder);  // the names only
  const std::int64_t batches = (list.rows() + kBatchRows - 1) / kBatchRows;
  ImageDecoder decoder;
  std::int64_t number = out.index();
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<std::size_t> order = shuffled(list.files.size(), seed, epoch);
    for (; number < (epoch + 1) * batches; number += out.count()) {
      auto batch = out.next();
      if (!batch) return;
      auto [pixels, labels] = batch.arrays();
      const std::int64_t first = (number - epoch * batches) * kBatchRows;
      const std::int64_t rows = std::min(kBatchRows, list.rows() - first);
      for (std::int64_t row = 0; row < rows; ++row) {
        const LabelledFile& file = list.files[order[static_cast<std::size_t>(first + row)]];
        decoder.decode(read_file(file.path), file.path, pixels[row]);  // throws if the image is damaged
        labels[row] = file.label;
      }
      batch.push(rows);
    }
  }
}

struct Score {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> right;
};

/// The cross-entropy of softmax regression, and its gradient. `params` has kInputs weights and a bias for each class.
Score loss_and_gradient(sr::Scattered<const std::uint8_t, 4> pixels, sr::Scattered<const std::int64_t, 1> labels,
                        sr::Local<double, 1> params, sr::Local<double, 1> gradient) {
  const std::int64_t classes = params.rows() / (kInputs + 1);
  const auto rows = static_cast<double>(pixels.rows());
  std::fill(gradient.begin(), gradient.end(), 0);
  std::vector<double> scores(static_cast<std::size_t>(classes));
  std::array<double, kInputs + 1> inputs;
  inputs.back() = 1;
  double loss = 0;
  std::int64_t right = 0;
  for (std::int64_t row = 0; row < pixels.rows(); ++row) {
    const auto image = pixels[row].span();
    std::transform(image.begin(), image.end(), inputs.begin(), [](std::uint8_t value) { return value / 255.0 - 0.5; });
    for (std::size_t k = 0; k < scores.size(); ++k) {
      scores[k] = std::inner_product(inputs.begin(), inputs.end(), params.data() + k * inputs.size(), 0.0);
    }
    const auto best = std::max_element(scores.begin(), scores.end());
    if (best - scores.begin() == labels[row]) ++right;
    const double most = *best;
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    const auto label = static_cast<std::size_t>(labels[row]);
    loss -= std::log(scores[label] / sum) / rows;
    for (std::size_t k = 0; k < scores.size(); ++k) {
      const double error = (scores[k] / sum - (k == label ? 1 : 0)) / rows;
      double* const of_class = gradient.data() + k * inputs.size();
      for (std::size_t i = 0; i < inputs.size(); ++i) of_class[i] += error * inputs[i];
    }
  }
  return {.loss = loss, .right = right};
}

int program(sr::Session& session, int argc, char** argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  if (arguments.writes) {
    write_image_folder(arguments.folder);
    return 0;
  }
  const ImageList list(arguments.folder);
  std::printf("%d images of %zu classes\n", static_cast<int>(list.rows()), list.classes.size());

  auto params = session.shared<double, 1>("params");
  params.broadcast(std::vector<double>(list.classes.size() * (kInputs + 1)));
  auto step = sr::train_step<sr::Momentum>(session, loss_and_gradient, params);
  auto queue = session.producers(arguments.producers, read_images, {{kBatchRows, kSide, kSide, 3}, {kBatchRows}}, {},
                                 arguments.folder, arguments.seed);
  int epoch = 0;
  std::int64_t rows = 0, right = 0;
  double loss = 0;
  for (const Images& batch : queue) {
    const Score score = step(batch.pixels, batch.labels, {.learning_rate = 0.01, .momentum = 0.9});
    rows += batch.labels.rows();
    right += score.right;
    loss += score.loss * static_cast<double>(batch.labels.rows());
    if (rows < list.rows()) continue;
    std::printf("epoch %d: loss %.6f, %d right\n", ++epoch, loss / static_cast<double>(rows), static_cast<int>(right));
    rows = right = 0;
    loss = 0;
  }
  return 0;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }
