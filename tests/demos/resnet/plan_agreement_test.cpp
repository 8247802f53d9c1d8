// Agreement of ranks on their plans. The ranks are simulated here. The tests of the program use GPUs.

#include "demos/resnet/program/plan_agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "demos/common/usage_error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace resnet {
namespace {

using demos::UsageError;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const PlanPlace kAgreedPlace{.gpu = "NVIDIA H200", .multiprocessors = 132, .cudnn = "9.19.0", .frontend = "1.32.0"};
PlanPlace other_gpu() {
  PlanPlace place = kAgreedPlace;
  place.gpu = "NVIDIA H100";
  return place;
}

PlanKey key_of(std::size_t rows) {
  return {ConvPass::kForward,
          CudaMath::kBfloat16,
          {.rows = rows, .channels_in = 8, .channels_out = 8, .size_in = 8, .kernel = 1, .stride = 1, .padding = 0}};
}

/// Plans with this name for convolutions of these numbers of rows.
ConvPlans plans_of(const std::string& name, const std::vector<std::size_t>& rows,
                   const PlanPlace& place = kAgreedPlace) {
  ConvPlans plans(place);
  for (const std::size_t count : rows) plans.set(key_of(count), {name, 0});
  return plans;
}

/// Simulated ranks. Their run has convolutions of 1, 2 and 3 rows, for which rank 0 chooses "timed".
class MadeUpRanks : public PlanRanks {
 public:
  explicit MadeUpRanks(std::vector<PlanPlace> places) : places_(std::move(places)) {}

  int count() const override { return static_cast<int>(places_.size()); }
  PlanPlace place_of(int rank) override { return places_[static_cast<std::size_t>(rank)]; }
  ConvPlans choose(const ConvPlans& known) override {
    EXPECT_EQ(known.place(), places_[0]) << "what is for another GPU is not given to one";
    ConvPlans all = known;
    all.fill_from(plans_of("timed", {1, 2, 3}, places_[0]));
    return all;
  }
  void adopt(const ConvPlans& plans) override { adopted = plans; }

  std::optional<ConvPlans> adopted;

 private:
  std::vector<PlanPlace> places_;
};

std::vector<std::string> names_in(const ConvPlans& plans) {
  std::vector<std::string> names;
  for (const auto& [key, choice] : plans.choices()) names.push_back(choice.name);
  return names;
}

std::string complaint(const std::vector<PlanPlace>& places, const PlanSources& sources) {
  MadeUpRanks ranks(places);
  try {
    agree_on_plans(ranks, sources);
  } catch (const UsageError& error) {
    EXPECT_FALSE(ranks.adopted);
    return error.what();
  }
  return "nothing";
}

TEST(PlanAgreement, IsToWhatRank0ChoosesWhereNothingIsKnown) {
  MadeUpRanks ranks({kAgreedPlace, kAgreedPlace});
  const AgreedPlans agreed = agree_on_plans(ranks, {});
  EXPECT_EQ(agreed.plans, plans_of("timed", {1, 2, 3}));
  EXPECT_EQ(ranks.adopted, agreed.plans);
  EXPECT_THAT(agreed.notes, IsEmpty()) << "nobody has asked";
  EXPECT_THAT(agree_on_plans(ranks, {.file = "FILE"}).notes,
              ElementsAre("cuDNN plans: 3 chosen by timing; FILE has all of them now"));
  EXPECT_THAT(agree_on_plans(ranks, {.checkpoint = "DIR"}).notes,
              ElementsAre(HasSubstr("the checkpoint in DIR has none")));
}

TEST(PlanAgreement, TakesTheFileAndChoosesWhatItLacks) {
  MadeUpRanks ranks({kAgreedPlace, kAgreedPlace});
  const PlanSources sources{.file = "FILE", .in_file = plans_of("file", {1, 9})};
  const AgreedPlans agreed = agree_on_plans(ranks, sources);
  EXPECT_THAT(names_in(agreed.plans), ElementsAre("file", "timed", "timed", "file"));
  EXPECT_EQ(ranks.adopted, agreed.plans);
  EXPECT_THAT(agreed.notes, ElementsAre("cuDNN plans: 2 from FILE, 2 chosen by timing; FILE has all of them now"));
  const PlanSources again{.file = "FILE", .in_file = agreed.plans};
  EXPECT_THAT(agree_on_plans(ranks, again).notes, ElementsAre("cuDNN plans: 4 from FILE, 0 chosen by timing"));
}

TEST(PlanAgreement, TakesTheCheckpointsPlansBehindTheFiles) {
  MadeUpRanks ranks({kAgreedPlace});
  PlanSources sources{.checkpoint = "DIR", .in_checkpoint = plans_of("saved", {1, 2})};
  const AgreedPlans resumed = agree_on_plans(ranks, sources);
  EXPECT_THAT(names_in(resumed.plans), ElementsAre("saved", "saved", "timed"));
  EXPECT_THAT(resumed.notes, ElementsAre("cuDNN plans: 2 from the checkpoint in DIR, 1 chosen by timing"));

  sources.file = "FILE";
  EXPECT_THAT(names_in(agree_on_plans(ranks, sources).plans), ElementsAre("saved", "saved", "timed"))
      << "a new file is given the checkpoint's";
  sources.in_file = plans_of("file", {1});
  const AgreedPlans both = agree_on_plans(ranks, sources);
  EXPECT_THAT(names_in(both.plans), ElementsAre("file", "saved", "timed"));
  EXPECT_THAT(both.notes,
              ElementsAre("cuDNN plans: 1 of FILE are not those of the checkpoint in DIR: the file's are used, and "
                          "roundings may differ from here on",
                          "cuDNN plans: 1 from FILE, 1 from the checkpoint in DIR, 1 chosen by timing; FILE has all "
                          "of them now"));
}

TEST(PlanAgreement, LeavesACheckpointsPlansForAnotherGpu) {
  MadeUpRanks ranks({kAgreedPlace});
  const AgreedPlans agreed =
      agree_on_plans(ranks, {.checkpoint = "DIR", .in_checkpoint = plans_of("saved", {1, 2}, other_gpu())});
  EXPECT_EQ(agreed.plans, plans_of("timed", {1, 2, 3}));
  ASSERT_THAT(agreed.notes, SizeIs(2));
  EXPECT_THAT(agreed.notes[0], HasSubstr("those of the checkpoint in DIR are for " + describe(other_gpu()) +
                                         ", and this is " + describe(kAgreedPlace) + ": they are not used"));
  EXPECT_EQ(agreed.notes[1], "cuDNN plans: 0 from the checkpoint in DIR, 3 chosen by timing");
}

TEST(PlanAgreement, RefusesAFileForAnotherGpuOrVersion) {
  for (std::string PlanPlace::*field : {&PlanPlace::gpu, &PlanPlace::cudnn, &PlanPlace::frontend}) {
    PlanPlace place = kAgreedPlace;
    place.*field += '1';
    EXPECT_EQ(complaint({kAgreedPlace}, {.file = "FILE", .in_file = plans_of("file", {1}, place)}),
              "--plans: expected plans for " + describe(kAgreedPlace) + ", got those for " + describe(place) +
                  " in FILE (a file that does not exist is written anew)");
  }
}

TEST(PlanAgreement, OfDifferentGpusIsForTheFirstsAndOnlyWithoutAFile) {
  EXPECT_EQ(complaint({kAgreedPlace, kAgreedPlace, other_gpu()}, {.file = "FILE"}),
            "--plans: expected the same GPU and versions on all ranks, got rank 0 with " + describe(kAgreedPlace) +
                " and rank 2 with " + describe(other_gpu()));
  MadeUpRanks ranks({kAgreedPlace, other_gpu()});
  EXPECT_THAT(agree_on_plans(ranks, {}).notes,
              ElementsAre("cuDNN plans: rank 1 has " + describe(other_gpu()) + ", and rank 0 " +
                          describe(kAgreedPlace) + ": it chooses its own"));
}

TEST(RowsOfPasses, AreThoseOfEverySliceOfEveryRank) {
  const PassRows alone = rows_of_passes(1, {{256, 1}}, std::nullopt);
  EXPECT_THAT(alone.training, ElementsAre(256, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(alone.evaluation, ElementsAre(0, 0, 0, 0));
  // On two ranks, 103 rows are 52 and 51 rows. In three slices, these are 18, 17, 17 and 17, 17, 17. 5 rows are 3 and
  // 2.
  const PassRows divided = rows_of_passes(2, {{103, 3}, {5, 1}}, Division{7, 2});
  EXPECT_THAT(divided.training, ElementsAre(18, 17, 3, 2, 0, 0, 0, 0));
  EXPECT_THAT(divided.evaluation, ElementsAre(2, 1, 0, 0)) << "4 and 3, in two slices each";
  EXPECT_THAT(rows_of_passes(8, {{3, 3}}, std::nullopt).training, ElementsAre(1, 0, 0, 0, 0, 0, 0, 0))
      << "slices and ranks without rows have no plans";
}

class PlansFile : public ::testing::Test {
 protected:
  std::string refusal(const std::filesystem::path& file) const {
    try {
      read_plans(file);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  }
  std::filesystem::path file() const { return folder_ / "plans.txt"; }

  TemporaryFolder folder_;
};

TEST_F(PlansFile, IsReadAsItWasWrittenAndLeavesNothingBesideIt) {
  EXPECT_EQ(read_plans(file()), std::nullopt) << "none yet";
  for (const char* name : {"first", "second"}) {
    write_plans(file(), plans_of(name, {1, 2}));
    EXPECT_EQ(read_plans(file()), plans_of(name, {1, 2}));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(PlansFile, ThatIsDamagedOrNoRegularFileIsRefusedByName) {
  std::ofstream(file()) << plans_of("any", {1}).text().substr(0, 60);
  EXPECT_THAT(refusal(file()), HasSubstr("--plans: " + file().string() + ", line 4: expected a whole line"));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("expected a regular file, or none yet, got a folder"));
  EXPECT_THAT(refusal(folder_ / "missing" / "plans.txt"), HasSubstr("got no such folder at "));
  std::filesystem::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_THAT(refusal(file()), HasSubstr("expected a regular file, or none yet, got something else"));
}

TEST_F(PlansFile, ThatCannotBeWrittenSaysWhyAndStays) {
  const std::filesystem::path missing = folder_ / "missing" / "plans.txt";
  try {
    write_plans(missing, plans_of("any", {1}));
    ADD_FAILURE() << "there is no such folder";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), "--plans: cannot write " + missing.string() + ": No such file or directory");
  }
  std::filesystem::create_directory(file());  // no file can be renamed to a folder
  EXPECT_THROW(write_plans(file(), plans_of("any", {1})), std::runtime_error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "what was begun is removed";
}

}  // namespace
}  // namespace resnet
