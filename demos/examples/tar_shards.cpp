// Computes the mean colour of each class of images in tar files, and counts the images that are nearest to the mean
// colour of their class. Producers read the tar files as streams and decode the images in the background. The functions
// have bodies for CPU devices only. On a machine with GPUs, run this with `syncrun -n cpu`.
//
//   tar_shards --write FOLDER              writes a small data set to try this with
//   tar_shards FOLDER [PRODUCERS [SEED]]
//
// The results are sums of whole numbers. So they do not depend on the order of the images.

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/examples/images.hpp"
#include "demos/examples/synthetic_images.hpp"
#include "demos/examples/tar_shard.hpp"

namespace examples {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kClasses = 3;

/// The tar files in a folder, in the order of an epoch.
std::vector<fs::path> shards_of(const fs::path& folder, std::uint64_t seed, std::int64_t epoch) {
  std::vector<fs::path> files = sorted_files(folder);
  std::erase_if(files, [](const fs::path& file) { return file.extension() != ".tar"; });
  if (files.empty()) {
    throw DataError(folder.string() + ": expected .tar files, got none. Pass the folder that has the shards");
  }
  std::vector<fs::path> shards;
  for (const std::size_t number : shuffled(files.size(), seed, epoch)) shards.push_back(files[number]);
  return shards;
}

/// Each producer reads shards of its own. Its batches have images of several shards.
void read_shards(sr::Producer<Images>& out, const std::string& folder, std::uint64_t seed, std::int64_t epoch) {
  std::vector<fs::path> own;
  const std::vector<fs::path> shards = shards_of(folder, seed, epoch);
  for (auto i = static_cast<std::size_t>(out.index()); i < shards.size(); i += static_cast<std::size_t>(out.count())) {
    own.push_back(shards[i]);
  }
  ShuffledShards images(std::move(own), kClasses, random_numbers(seed, epoch, 1 + out.index()));
  ImageDecoder decoder;
  auto batch = out.next();
  std::int64_t rows = 0;
  while (const auto image = images.next()) {  // throws if a shard is damaged
    if (!batch) return;
    auto [pixels, labels] = batch.arrays();
    decoder.decode(image->jpeg, image->name, pixels[rows]);
    labels[rows] = image->label;
    if (++rows < kBatchRows) continue;
    batch.push();
    batch = out.next();
    rows = 0;
  }
  if (batch && rows > 0) batch.push(rows);
}

using Colour = std::array<std::int64_t, 3>;

/// The sum of all pixels of an image.
Colour colour_of(sr::ArrayView<const std::uint8_t, 3> image) {
  Colour sum{};
  for (std::int64_t i = 0; i < image.size(); ++i) sum[static_cast<std::size_t>(i % 3)] += image.data()[i];
  return sum;
}

/// For each class: the sums of red, green and blue over all pixels, and the number of images.
sr::Sum<std::int64_t, 2> add_colours(sr::CpuWorker& worker, sr::Scattered<const std::uint8_t, 4> pixels,
                                     sr::Scattered<const std::int64_t, 1> labels) {
  sr::Sum<std::int64_t, 2> sums(worker, {kClasses, 4});
  for (std::int64_t row = 0; row < pixels.rows(); ++row) {
    const Colour colour = colour_of(pixels[row]);
    for (std::size_t c = 0; c < 3; ++c) sums(labels[row], c) += colour[c];
    ++sums(labels[row], 3);
  }
  return sums;
}

sr::Sum<std::int64_t> count_near(sr::Scattered<const std::uint8_t, 4> pixels,
                                 sr::Scattered<const std::int64_t, 1> labels, sr::Broadcast<const double, 2> means) {
  std::int64_t near = 0;
  for (std::int64_t row = 0; row < pixels.rows(); ++row) {
    const Colour colour = colour_of(pixels[row]);
    std::array<double, kClasses> distances{};
    for (std::int64_t k = 0; k < kClasses; ++k) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double difference = static_cast<double>(colour[c]) / (kSide * kSide) - means(k, c);
        distances[static_cast<std::size_t>(k)] += difference * difference;
      }
    }
    const auto nearest = std::min_element(distances.begin(), distances.end()) - distances.begin();
    near += nearest == labels[row] ? 1 : 0;
  }
  return near;
}

void print_order(const Arguments& arguments, std::int64_t epoch) {
  std::printf("epoch %d:", static_cast<int>(epoch + 1));
  for (const fs::path& shard : shards_of(arguments.folder, arguments.seed, epoch)) {
    std::printf(" %s", shard.stem().c_str());
  }
  std::printf("\n");
}

int program(sr::Session& session, int argc, char** argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  if (arguments.writes) {
    write_tar_shards(arguments.folder);
    return 0;
  }
  // The order of the images does not matter here. So the queue returns the batches as they are ready.
  const auto images_of = [&](std::int64_t epoch) {
    print_order(arguments, epoch);
    return session.producers(arguments.producers, read_shards, {{kBatchRows, kSide, kSide, 3}, {kBatchRows}},
                             {.order = sr::BatchOrder::arrival}, arguments.folder, arguments.seed, epoch);
  };
  const auto add = session.function(add_colours);
  sr::Array<std::int64_t, 2> sums(sr::Shape{kClasses, 4});
  auto first_epoch = images_of(0);
  for (const Images& batch : first_epoch) {
    const auto more = add(batch.pixels, batch.labels);
    std::transform(sums.begin(), sums.end(), more.begin(), sums.begin(), std::plus<>());
  }

  auto means = session.data<double, 2>({kClasses, 3}, "means");
  std::int64_t images = 0;
  for (std::int64_t k = 0; k < kClasses; ++k) {
    const std::int64_t pixels = std::max<std::int64_t>(1, sums(k, 3)) * kSide * kSide;
    const auto mean = means.write();
    for (std::int64_t c = 0; c < 3; ++c) mean(k, c) = static_cast<double>(sums(k, c)) / static_cast<double>(pixels);
    std::printf("class %d: %d images, mean colour %.3f %.3f %.3f\n", static_cast<int>(k), static_cast<int>(sums(k, 3)),
                mean(k, 0), mean(k, 1), mean(k, 2));
    images += sums(k, 3);
  }
  const auto count = session.function(count_near);
  std::int64_t near = 0;
  auto second_epoch = images_of(1);
  for (const Images& batch : second_epoch) near += count(batch.pixels, batch.labels, means);
  std::printf("%d of %d images are nearest to the mean colour of their class\n", static_cast<int>(near),
              static_cast<int>(images));
  return 0;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }
