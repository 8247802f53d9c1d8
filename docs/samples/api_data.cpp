// docs/api/data.md

#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

void program(sr::Session& session) {
  // [make]
  const std::vector<float> pixels(500 * 784, 0.5F);
  auto x = session.data(pixels, sr::Shape{500, 784});          // Data<float, 2>
  auto labels = session.data(std::vector<std::int32_t>(500));  // Data<std::int32_t, 1>
  auto zeros = session.data<double, 2>({100, 3});              // zero-filled

  {
    auto w = x.write();  // waits for calls that read x
    w(0, 0) = 1;
    for (float& value : w[1]) value = 2;
  }  // from here on calls may read x again

  x.resize({600, 784});  // rows 500 to 599 are zero
  labels.set(std::vector<std::int32_t>(600, 7));
  std::printf("%s, %d\n", to_string(x.shape()).c_str(), static_cast<int>(labels.view()[599]));
  zeros.free();
  // [/make]
  // [surface]
  const auto f =
      session.function([](sr::Scattered<const float, 2> rows) -> sr::Sum<std::int64_t> { return rows.rows(); });
  auto points = session.data<float, 2>({100, 3}, "points");
  points.fill(1);
  points.set_rows(2, std::vector<float>{7, 8, 9, 10, 11, 12});  // rows 2 and 3
  const auto some = points.slice({2, 4});
  std::printf("%g %g\n", static_cast<double>(points.at(2, 0)), static_cast<double>(some(1, 2)));
  points.resize_rows(150, {.oversize = 2});  // room for 300 rows: growing on takes no new memory
  std::printf("%s, %zu bytes\n", to_string(points.shape()).c_str(), points.capacity_bytes());
  try {
    f(points, {.batch = std::vector{149, 150}});
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
  }
  // [/surface]
  // [map]
  sr::save("images.npy", session.data<std::uint8_t, 4>({100, 8, 8, 3}));
  const auto images = session.map_npy<std::uint8_t, 4>("images.npy", "images");  // nothing is copied
  const auto count =
      session.function([](sr::Scattered<const std::uint8_t, 4> rows) -> sr::Sum<std::int64_t> { return rows.rows(); });
  count(images, {.batch = std::vector{99, 3, 50}});  // each worker reads its own rows from the file

  // A file without a header: bytes 128 and up of the same file, as many rows of 192 as there are
  const auto raw = session.map_raw<std::uint8_t, 2>("images.npy", {-1, 8 * 8 * 3}, 128, "raw");
  std::printf("%s\n", to_string(raw.shape()).c_str());
  // [/map]
  // [convert]
  const std::vector<std::uint8_t> bytes{0, 128, 255};
  const std::vector<double> doubles{0.1, 1000.7};
  const auto floats = session.data_as<float>(bytes);  // nothing can be lost: silent
  const auto fewer = session.data_as<float>(sr::lossy(doubles), "fewer digits");
  std::printf("%g %.9g\n", static_cast<double>(floats.at(2)), static_cast<double>(fewer.at(0)));
  std::printf("%d\n", sr::convert<int>(sr::lossy(doubles))[1]);  // what would be stored
  try {
    sr::convert<std::uint8_t>(sr::lossy(doubles));
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
  }
  // [/convert]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
