#include "master/command_line/conclusion.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncrun::detail {
namespace {

// A wait status as waitpid() encodes it.
constexpr int exited(int code) { return code << 8; }

master::command_line::JobEnd ended(int wait_status) {
  master::command_line::JobEnd end;
  end.program = "prog";
  end.master = 12;
  end.wait_status = wait_status;
  end.said_hello = true;
  return end;
}

TEST(Conclusion, SaysHowTheLoaderFindsTheLibrary) {
  auto end = ended(exited(127));
  end.said_hello = false;
  EXPECT_THAT(master::command_line::conclude(end).message, testing::HasSubstr("is it a Syncrun program?"))
      << "it may be a script";
  end.needed_library = "libsyncrun.so.0.1";
  EXPECT_EQ(
      master::command_line::conclude(end).message,
      "prog ended (exited with code 127) before its main: the loader has not found a library, and its line above names "
      "it. If it is libsyncrun.so.0.1, set LD_LIBRARY_PATH=FOLDER, or link the program with -Wl,-rpath,FOLDER, or run "
      "ldconfig if the folder is one of the system's, such as /usr/local/lib");
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 127);
  end.library_folder = "/opt/syncrun/lib";
  EXPECT_THAT(master::command_line::conclude(end).message, testing::HasSubstr("LD_LIBRARY_PATH=/opt/syncrun/lib, or"));
}

TEST(Conclusion, EndsAFailureWithTheOtherFaults) {
  auto end = ended(exited(0));
  end.notes = "\nthe log lacks lines";
  EXPECT_EQ(master::command_line::conclude(end).message, "") << "it was said when it happened";
  end.wait_status = exited(1);
  EXPECT_EQ(master::command_line::conclude(end).message, "the program exited with code 1\nthe log lacks lines");
  end.verdict = "rank 1 was lost";
  EXPECT_EQ(master::command_line::conclude(end).message, "rank 1 was lost\nthe log lacks lines");
}

TEST(Conclusion, HasOnlyTheDetailsOfItsMessage) {
  auto end = ended(exited(1));
  end.details = {{"kind", "worker lost"}};
  end.verdict = "rank 1 was lost";
  EXPECT_EQ(master::command_line::conclude(end).details, end.details);
  end.verdict.clear();  // it belongs to the attempt before
  end.stop_signal = 15;
  end.wait_status = 15;
  EXPECT_TRUE(master::command_line::conclude(end).details.empty());
}

TEST(Conclusion, IsThatOfTheProgramIfItWasAskedToStopAndHasDoneSo) {
  auto end = ended(exited(0));
  end.stop_signal = 15;
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 0);
  EXPECT_EQ(master::command_line::conclude(end).message, "");
  EXPECT_TRUE(master::command_line::conclude(end).was_asked);
  end.wait_status = exited(1);
  end.verdict = "cannot write the checkpoint";
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 1);
  EXPECT_EQ(master::command_line::conclude(end).message, "cannot write the checkpoint");
  end.verdict.clear();
  end.wait_status = 9;  // another process has killed it
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 137);
  EXPECT_EQ(master::command_line::conclude(end).message,
            "stopped by SIGTERM (Terminated): the master (pid 12) was killed by SIGKILL (Killed)");
  end.killed = master::command_line::KillReason::second_signal;
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 143);
}

TEST(Conclusion, AdmitsThatAMasterCouldNotBeKilled) {
  auto end = ended(0);
  end.wait_status.reset();
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 137);
  EXPECT_EQ(master::command_line::conclude(end).message, "the master (pid 12) could not be killed");
}

TEST(Conclusion, OfAProgramWithRaisedPrivilegesSaysThatItIgnoresUs) {
  master::command_line::JobEnd end = ended(exited(0));
  end.said_hello = false;
  end.is_privileged = true;
  EXPECT_EQ(master::command_line::conclude(end).exit_code, 0);
  EXPECT_THAT(master::command_line::conclude(end).message, testing::HasSubstr("prog runs with raised privileges"));
}

}  // namespace
}  // namespace syncrun::detail
