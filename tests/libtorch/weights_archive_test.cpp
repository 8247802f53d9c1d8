// Archives of torch.save and torch.jit.save: the tensors of files that Python wrote, and what is refused with which words.

#include "libtorch/weights_archive.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <syncrun/error.hpp>

#include "libtorch/inflate.hpp"
#include "libtorch/weights_index.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace syncrun::libtorch::detail;
using namespace std::string_literals;

const std::filesystem::path kFolder = SYNCRUN_WEIGHTS_FOLDER;

std::vector<ArchivedTensor> read_archive_of(const std::string& file) {
  return read_weights_archive(std::as_bytes(std::span(file)), "m.pt");
}
void expect_archive_refused(const std::string& file, const std::string& words) {
  try {
    read_archive_of(file);
    ADD_FAILURE() << "accepted, expected: " << words;
  } catch (const syncrun::Error& error) {
    EXPECT_EQ(error.kind(), syncrun::ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

std::string little(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>((value >> (8 * i)) & 0xffU));
  return text;
}
struct ZipEntry {
  std::string name;
  std::string bytes;
  std::uint16_t method = 0;
};
/// An archive with these records, whose headers do not have the checksums.
std::string zip_of(const std::vector<ZipEntry>& entries) {
  std::string file;
  std::string directory;
  for (const auto& [name, bytes, method] : entries) {
    const std::string common = little(method, 2) + std::string(8, '\0') + little(bytes.size(), 4) +
                               little(bytes.size(), 4) + little(name.size(), 2) + little(0, 2);
    directory += "PK\1\2"s + little(20, 2) + little(20, 2) + little(0, 2) + common + std::string(10, '\0') +
                 little(file.size(), 4) + name;
    file += "PK\3\4"s + little(20, 2) + little(0, 2) + common + name + bytes;
  }
  const std::size_t at = file.size();
  return file + directory + "PK\5\6"s + std::string(4, '\0') + little(entries.size(), 2) + little(entries.size(), 2) +
         little(directory.size(), 4) + little(at, 4) + little(0, 2);
}
std::string archive_of(const std::string& pickle) {
  return zip_of({{"m/data.pkl", "\x80\2"s + pickle}, {"m/data/0", std::string(16, '\1')}});
}
/// A pickle of a tensor in the record data/0, with four elements of float32 unless `elements` says otherwise.
std::string tensor_pickle(char offset, char extent, char stride, char elements = 4) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK"s +
         elements + "tQK" + offset + "K" + extent + "\x85K" + stride + "\x85\x89}tR";
}

TEST(WeightsArchive, OfPythonHasTheTensorsOfTheStateDict) {
  const std::vector<std::string> names{"first.bias",        "first.weight",     "frozen.bias",
                                       "frozen.weight",     "norm.bias",        "norm.num_batches_tracked",
                                       "norm.running_mean", "norm.running_var", "norm.weight"};
  for (const char* version : {"1.13", "2.11"}) {
    // TorchScript's attributes that are no parameters or buffers have no names in a state_dict.
    for (const char* name : {"state_dict.pt", "script.pt"}) {
      const std::string file = text_of(kFolder / version / name);
      const auto tensors = read_archive_of(file);
      std::vector<std::string> found;
      for (const auto& each : tensors) found.push_back(each.name);
      EXPECT_EQ(found, names) << version << name;
      ASSERT_EQ(tensors.size(), names.size());
      EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{3, 4}));
      ASSERT_EQ(tensors[1].elements.size(), 48U);
      float last = 0;
      std::memcpy(&last, tensors[1].elements.data() + 44, sizeof(last));
      EXPECT_EQ(last, 11.0F / 8);
      EXPECT_EQ(tensors[5].type, StoredType::int64);
    }
    const std::string checkpoint = text_of(kFolder / version / "checkpoint.pt");
    const auto tensors = read_archive_of(checkpoint);
    const auto has = [&](const char* name) {
      return std::any_of(tensors.begin(), tensors.end(), [&](const auto& each) { return each.name == name; });
    };
    EXPECT_TRUE(has("state.model.module.norm.weight"));
    EXPECT_TRUE(has("optimizer.state.0.exp_avg"));
  }
}

TEST(WeightsArchive, CutOffAnywhereIsRefused) {
  for (const char* name : {"state_dict.pt", "script.pt"}) {
    const std::string file = text_of(kFolder / "2.11" / name);
    for (std::size_t size = 0; size < file.size(); ++size)
      expect_archive_refused(file.substr(0, size),
                             "cannot read m.pt as a file of torch.save or torch.jit.save: expected ");
  }
}

TEST(WeightsArchive, WithCodeIsRefusedByItsName) {
  const auto calls = [](const std::string& name) { return "it contains code. It calls '" + name + "', expected only"; };
  expect_archive_refused(archive_of("cos\nsystem\nX\2\0\0\0ls\x85R."s), calls("os.system"));
  expect_archive_refused(archive_of("csubprocess\nPopen\nX\2\0\0\0ls\x85\x81."s), calls("subprocess.Popen"));
  expect_archive_refused(archive_of("csubprocess\nPopen\n)}\x92."s), calls("subprocess.Popen"));
  expect_archive_refused(archive_of("(X\2\0\0\0lsios\nsystem\n."s), calls("os.system"));
  expect_archive_refused(archive_of("(cos\nsystem\nX\2\0\0\0lso."s), calls("os.system"));
  expect_archive_refused(archive_of("c__main__\nNet\n}b."s), calls("__main__.Net"));
  expect_archive_refused(archive_of("\x8c\2os\x8c\6system\x93\x8c\2ls\x85R."s), calls("os.system"));
  // A function that calls the one that is its argument.
  expect_archive_refused(archive_of("ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nK\1X\2\0\0\0ls\x85K\1tR."s),
                         calls("os.system"));
  expect_archive_refused(archive_of("ctorch._tensor\n_rebuild_from_type_v2\nq\0(h\0K\1)K\1tR."s),
                         calls("torch._tensor._rebuild_from_type_v2"));
}

TEST(WeightsArchive, WithATensorOutsideItsElementsIsRefused) {
  const auto of = [](const std::string& tensor) { return archive_of("}X\1\0\0\0a"s + tensor + "s."); };
  EXPECT_EQ(read_archive_of(of(tensor_pickle(1, 3, 1))).at(0).elements.size(), 12U);
  EXPECT_EQ(read_archive_of(of(tensor_pickle(0, 2, 3))).at(0).elements.size(), 16U);
  const std::string words = "expected 'a' within the 4 elements of record 'data/0', found more";
  expect_archive_refused(of(tensor_pickle(2, 3, 1)), words);
  expect_archive_refused(of(tensor_pickle(0, 3, 2)), words);
  expect_archive_refused(of(tensor_pickle(0, 2, 1, 5)),
                         "expected 5 elements of 4 bytes in record 'data/0', found 16 bytes");
  // -1 as an offset, as an extent, and as a stride
  const std::string minus = "J\xff\xff\xff\xff"s;
  const auto replaced = [&](const std::string& byte) {
    std::string tensor = tensor_pickle(5, 6, 7);
    tensor.replace(tensor.find(byte), 2, minus);
    return of(tensor);
  };
  for (const char* byte : {"K\5", "K\6", "K\7"}) expect_archive_refused(replaced(byte), words);
}

TEST(WeightsArchive, ThatIsDamagedIsRefused) {
  const std::string no_pickle = zip_of({{"m/data/0", "x"}});
  expect_archive_refused(no_pickle, "expected a record 'data.pkl', found none");
  expect_archive_refused("hello", "expected a zip archive, which begins with 'PK'");
  expect_archive_refused(zip_of({{"m/data.pkl", "N.", 8}}), "that is not compressed, as PyTorch writes it");
  expect_archive_refused(zip_of({{"m/data.pkl", "N."}, {"m/data.pkl", "N."}}), "found 'm/data.pkl' twice");
  expect_archive_refused(zip_of({{"m/data.pkl", "N."}, {"m/byteorder", "big"}}),
                         "expected little-endian elements, found 'big'");
  expect_archive_refused(
      archive_of("}X\1\0\0\0a"s + tensor_pickle(0, 2, 1) + "sX\1\0\0\0a"s + tensor_pickle(0, 2, 1) + "s."),
      "expected every name once, found 'a' twice");
  // A list that contains itself.
  expect_archive_refused(archive_of("]q\0h\0a."s), "expected at most 100 levels");
  expect_archive_refused(archive_of("h\7."s), "expected a value with the number 7");
  expect_archive_refused(archive_of("\xff"), "expected an instruction of protocol 2 to 5");
  expect_archive_refused(archive_of("(R."), "expected a value on the stack");
  expect_archive_refused(archive_of("NN."), "expected one value");
}

TEST(WeightsArchive, ThatIsShortNeedsLittleMemory) {
  const auto times = [](std::size_t count, const std::string& text) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += text;
    return all;
  };
  const auto text = [](const std::string& value) { return "X" + little(value.size(), 4) + value; };
  const std::string long_key = "}" + text(std::string(4'097, 'k'));
  expect_archive_refused(archive_of(long_key + tensor_pickle(0, 2, 1) + "s."), "expected names of at most 4096 bytes");
  expect_archive_refused(archive_of(times(3, long_key) + tensor_pickle(0, 2, 1) + "sss."), "names of at most 4096");
  // 2^20 values, although the pickle has only 20 lists: each has the former one twice.
  expect_archive_refused(archive_of("]q\0"s + times(20, "0(h\0h\0lq\0"s) + "."), "levels and 1");
  // 1,000 tensors whose names share a long part
  expect_archive_refused(archive_of("}" + text(std::string(4'000, 'k')) + "(" + tensor_pickle(0, 2, 1) + "q\1" +
                                    times(1'000, "h\1") + "ls."),
                         "expected names and shapes that fit the size of the pickle");
  // one shape of 60 extents in 1,000 tensors
  expect_archive_refused(
      archive_of("((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQK\0("s + times(60, "K\1") +
                 "tq\0h\0tq\1ctorch._utils\n_rebuild_tensor\nq\2"s + times(1'000, "h\2h\1R0") + "."),
      "values in the pickle");
}

TEST(WeightsArchive, ReadsCodeOnlyForTorchScriptAndWithinABudget) {
  const std::string long_text(60'000'000, ' ');
  const ZipEntry tensor{"m/data/0", std::string(16, '\1')};
  const auto with_code = [&](const std::string& pickle) {
    return zip_of({{"m/data.pkl", "\x80\2"s + pickle},
                   {"m/code/__torch__/a.py", long_text},
                   {"m/code/__torch__/b.py", long_text},
                   tensor});
  };
  EXPECT_EQ(read_archive_of(with_code("}X\1\0\0\0a"s + tensor_pickle(0, 2, 1) + "s.")).size(), 1U);
  expect_archive_refused(with_code("c__torch__.a\nA\n)\x81}X\1\0\0\0bc__torch__.b\nB\n)\x81sb."s),
                         "expected at most 100000000 bytes of text, found more in record 'code/__torch__/b.py'");
}

TEST(WeightsArchive, WhoseRecordsOverlapIsRefused) {
  std::string file = zip_of({{"m/data.pkl", "N."}, {"m/data/0", "xx"}});
  // The directory's entry of the second record names the place of the first one.
  const std::size_t second = file.rfind("PK\1\2");
  file.replace(second + 42, 4, little(0, 4));
  expect_archive_refused(file, "expected records that do not overlap, found 'm/data");
}

TEST(WeightsArchive, WithATensorThatIsNegatedHasItUnread) {
  const auto read = [](const std::string& flags) {
    std::string tensor = tensor_pickle(0, 2, 1);
    tensor.insert(tensor.size() - 2, flags);
    return read_archive_of(archive_of("}X\1\0\0\0a"s + tensor + "s.")).at(0);
  };
  EXPECT_EQ(read("}X\3\0\0\0neg\x88s"s).unread, "a tensor of _rebuild_tensor_v2 with flags such as neg");
  EXPECT_EQ(read("}").unread, "");
}

TEST(WeightsIndex, ThatNestsDeeplyIsRefusedWithAShortMessage) {
  const std::size_t levels = 1'000'000;
  const std::string text = R"({"weight_map": {")" + std::string(1'000, 'k') + R"(": )" + std::string(levels, '[') +
                           std::string(levels, ']') + "}}";
  try {
    parse_weights_index(text, "w.index.json");
    ADD_FAILURE() << "accepted";
  } catch (const syncrun::Error& error) {
    EXPECT_NE(std::string(error.what()).find("...', found an element of type array"), std::string::npos);
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

TEST(Inflate, GivesTheContentsOfEachKindOfBlock) {
  const auto inflated = [](const std::string& compressed, std::uint64_t size) {
    return inflate(std::as_bytes(std::span(compressed)), size);
  };
  // By zlib: "aaaaaaaaaa" with fixed codes, and a block that is only stored.
  EXPECT_EQ(inflated("\x4b\x4c\x84\x01\x00"s, 10), "aaaaaaaaaa");
  EXPECT_EQ(inflated("\x01\x02\x00\xfd\xffhi"s, 2), "hi");
  EXPECT_EQ(inflated("\x01\x02\x00\xfd\xfehi"s, 2), std::nullopt) << "the length does not fit its complement";
  EXPECT_EQ(inflated("\x4b\x4c\x84\x01\x00"s, 9), std::nullopt);
  EXPECT_EQ(inflated("\x4b\x4c\x84\x01\x00"s, 11), std::nullopt);
  EXPECT_EQ(inflated("\x4b\x4c\x84"s, 10), std::nullopt);
  EXPECT_EQ(inflated("\x07"s, 1), std::nullopt) << "no such kind of block";
}

}  // namespace
