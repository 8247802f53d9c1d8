// NumPy reads the files that Syncrun writes, and Syncrun reads the files that NumPy writes.

#include <array>
#include <cstdio>
#include <memory>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

/// Runs the script with python3 in `folder`. Returns what it prints, including errors.
std::string python(const TemporaryFolder& folder, const std::string& script) {
  write_text(folder / "script.py", script);
  const std::string command = "cd '" + folder.path().string() + "' && python3 script.py 2>&1";
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  std::string output;
  std::array<char, 1024> part{};
  while (pipe && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) output += part.data();
  return output;
}

class WithNumpy : public OnWorkers {
 protected:
  void SetUp() override {
    OnWorkers::SetUp();
    const std::string found = python(folder_, "import numpy\nprint('numpy')\n");
    if (found != "numpy\n") GTEST_SKIP() << "python3 has no numpy here";
  }
  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(WithNumpy, 2);

TEST_P(WithNumpy, ItReadsWhatWeWrite) {
  sr::save(folder_ / "f4.npy", session().data(std::vector<float>{0.5F, -1, 2, 3, 4, 5}, sr::Shape{2, 3}));
  sr::save(folder_ / "f2.npy", session().data(std::vector<sr::float16>{1.5F, -2.0F}));
  sr::save(folder_ / "bf2.npy", session().data(std::vector<sr::bfloat16>{1.5F, -2.0F}));
  sr::save(folder_ / "i8.npy", session().data(std::vector<std::int64_t>{-1, 1LL << 60}));
  sr::save(folder_ / "u1.npy", session().data(std::vector<std::uint8_t>{0, 255}));
  sr::save(folder_ / "u2.npy", session().data(std::vector<std::uint16_t>{0, 65535}));
  sr::save(folder_ / "u4.npy", session().data(std::vector<std::uint32_t>{0, 4294967295U}));
  sr::save(folder_ / "u8.npy", session().data(std::vector<std::uint64_t>{0, 18446744073709551615U}));
  sr::save(folder_ / "b1.npy", session().data(std::array<bool, 2>{true, false}));
  auto rows = session().shared<double, 2>("rows");
  rows.scatter(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2});
  sr::save_checkpoint(folder_ / "run", {{"rows", rows, sr::Placement::scattered}});
  EXPECT_EQ(python(folder_, R"(import numpy
for name in ("f4", "f2", "i8", "u1", "u2", "u4", "u8", "b1", "run/latest/rows"):
    array = numpy.load(name + ".npy")
    print(name, array.dtype, array.shape, array.tolist(), array.flags["C_CONTIGUOUS"])
array = numpy.load("bf2.npy")
print("bf2", array.dtype, array.view("<u2").tolist())
)"),
            "f4 float32 (2, 3) [[0.5, -1.0, 2.0], [3.0, 4.0, 5.0]] True\n"
            "f2 float16 (2,) [1.5, -2.0] True\n"
            "i8 int64 (2,) [-1, 1152921504606846976] True\n"
            "u1 uint8 (2,) [0, 255] True\n"
            "u2 uint16 (2,) [0, 65535] True\n"
            "u4 uint32 (2,) [0, 4294967295] True\n"
            "u8 uint64 (2,) [0, 18446744073709551615] True\n"
            "b1 bool (2,) [True, False] True\n"
            "run/latest/rows float64 (3, 2) [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] True\n"
            "bf2 |V2 [16320, 49152]\n");
}

TEST_P(WithNumpy, WeReadWhatItWrites) {
  ASSERT_EQ(python(folder_, R"(import numpy
numpy.save("f8.npy", numpy.arange(6, dtype="<f8").reshape(2, 3))
numpy.save("f2.npy", numpy.array([1.5, -2], dtype="<f2"))
numpy.save("i2.npy", numpy.arange(3, dtype="<i2"))
numpy.save("u2.npy", numpy.array([0, 65535], dtype="<u2"))
numpy.save("u4.npy", numpy.array([0, 2**32 - 1], dtype="<u4"))
numpy.save("u8.npy", numpy.array([0, 2**64 - 1], dtype="<u8"))
numpy.save("b1.npy", numpy.array([True, False]))
numpy.save("empty.npy", numpy.zeros((0, 4), dtype="<f4"))
numpy.save("v2.npy", numpy.array([16320, 49152], dtype="<u2").view("|V2"))
for version in ((1, 0), (2, 0), (3, 0)):
    with open("version%d.npy" % version[0], "wb") as file:
        numpy.lib.format.write_array(file, numpy.arange(3, dtype="<i8"), version=version)
numpy.save("big.npy", numpy.arange(3, dtype=">f4"))
numpy.save("fortran.npy", numpy.asfortranarray(numpy.arange(6, dtype="<f4").reshape(2, 3)))
numpy.save("record.npy", numpy.zeros(2, dtype=[("a", "<f4"), ("b", "<i8")]))
numpy.save("complex.npy", numpy.zeros(2, dtype="<c8"))
numpy.save("object.npy", numpy.array([{}, None], dtype=object))
)"),
            "");
  const auto f8 = session().load<double, 2>(folder_ / "f8.npy");
  EXPECT_EQ(f8.shape(), (sr::Shape{2, 3}));
  EXPECT_EQ(f8.at(1, 2), 5);
  EXPECT_EQ((session().load<sr::float16, 1>(folder_ / "f2.npy").at(1)), -2.0F);
  EXPECT_EQ((session().load<sr::bfloat16, 1>(folder_ / "v2.npy").at(0)), 1.5F);
  EXPECT_EQ((session().load<std::int16_t, 1>(folder_ / "i2.npy").at(2)), 2);
  EXPECT_EQ((session().load<std::uint16_t, 1>(folder_ / "u2.npy").at(1)), 65535);
  EXPECT_EQ((session().map_npy<std::uint32_t, 1>(folder_ / "u4.npy").at(1)), 4294967295U);
  EXPECT_EQ((session().load<std::uint64_t, 1>(folder_ / "u8.npy").at(1)), 18446744073709551615U);
  EXPECT_TRUE((session().load<bool, 1>(folder_ / "b1.npy").at(0)));
  EXPECT_EQ((session().load<float, 2>(folder_ / "empty.npy").shape()), (sr::Shape{0, 4}));
  for (const char* name : {"version1.npy", "version2.npy", "version3.npy"}) {
    EXPECT_EQ((session().load<std::int64_t, 1>(folder_ / name).at(2)), 2) << name;
  }
  const auto load = [&](const char* name) { static_cast<void>(session().load<float, 1>(folder_ / name)); };
  EXPECT_ERROR(load("big.npy"), sr::ErrorKind::usage, "found element type '>f4', big-endian");
  EXPECT_ERROR(load("fortran.npy"), sr::ErrorKind::usage, "found fortran_order: True");
  EXPECT_ERROR(load("record.npy"), sr::ErrorKind::usage, "found records: '[('a', '<f4')");
  EXPECT_ERROR(load("complex.npy"), sr::ErrorKind::usage, "found element type '<c8'");
  EXPECT_ERROR(load("object.npy"), sr::ErrorKind::usage, "found element type '|O', Python objects");
}

}  // namespace
