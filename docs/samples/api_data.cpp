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
  // [open]
  const auto f =
      session.function([](sr::Scattered<const float, 2> rows) -> sr::Sum<std::int64_t> { return rows.rows(); });
  try {
    const auto w = x.write();
    f(x);
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
  }
  // [/open]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
