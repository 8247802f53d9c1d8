#include "demos/mnist/digits.hpp"

#include <algorithm>
#include <string>

namespace mnist {
namespace {

constexpr std::size_t kTrainingRowsPerValidationRow = 20;

std::string size_of(const demos::IdxImages& images) {
  return std::to_string(images.height) + " x " + std::to_string(images.width) + " pixels";
}

std::size_t held_out(std::size_t rows) { return std::max<std::size_t>(1, rows / kTrainingRowsPerValidationRow); }

}  // namespace

Digits::Digits(const std::filesystem::path& directory)
    : training_(demos::load_split(directory, demos::Split::kTrain)),
      test_(demos::load_split(directory, demos::Split::kTest)),
      training_rows_(training_.images.rows - held_out(training_.images.rows)),
      brightest_(demos::maximum_pixel(training_.images.pixels)) {
  if (training_rows_ == 0) {
    throw demos::IdxError(directory.string() + ": expected two training rows or more, got 1");
  }
  if (size_of(test_.images) != size_of(training_.images)) {
    throw demos::IdxError(directory.string() + ": expected test images of " + size_of(training_.images) +
                          " as the training images, got " + size_of(test_.images));
  }
}

LabeledRows Digits::rows_of(const demos::LabeledImages& data, std::size_t begin, std::size_t end) const {
  return {std::span(data.images.pixels).subspan(begin * pixels(), (end - begin) * pixels()),
          std::span(data.labels).subspan(begin, end - begin)};
}

}  // namespace mnist
