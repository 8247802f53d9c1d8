"""room_links.py catches what it is for."""

import sys
import unittest

sys.dont_write_bytecode = True
import room_links  # noqa: E402
from room_links import Object  # noqa: E402

SPAWN = Object("launcher", "spawn.cpp", {"syncrun::detail::spawn()"}, {"syncrun::detail::wait()"})
SERVE = Object("worker", "serve.cpp", {"syncrun::detail::serve()"}, {"syncrun::detail::wait()", "malloc"})
WAIT = Object("common", "wait.cpp", {"syncrun::detail::wait()"}, {"futex"})


class RoomLinks(unittest.TestCase):
    def links(self, *objects, allowed=None):
        return list(room_links.wrong_links([SPAWN, SERVE, WAIT, *objects], allowed or {}))

    def test_rooms_that_keep_to_themselves_pass(self):
        self.assertEqual(self.links(), [])

    def test_launcher_and_worker_use_nothing_of_each_other(self):
        self.assertEqual(
            self.links(Object("launcher", "task.cpp", set(), {"syncrun::detail::serve()"})),
            ["launcher/task.cpp uses syncrun::detail::serve() of worker/serve.cpp"],
        )
        self.assertEqual(len(self.links(Object("worker", "a.cpp", set(), {"syncrun::detail::spawn()"}))), 1)

    def test_common_uses_neither(self):
        both = {"syncrun::detail::spawn()", "syncrun::detail::serve()"}
        self.assertEqual(len(self.links(Object("common", "a.cpp", set(), both))), 2)

    def test_what_is_allowed_is_allowed_to_one_object(self):
        uses = {"syncrun::detail::serve()"}
        allowed = {"launcher/a.cpp": uses}
        self.assertEqual(self.links(Object("launcher", "a.cpp", set(), uses), allowed=allowed), [])
        self.assertEqual(len(self.links(Object("launcher", "b.cpp", set(), uses), allowed=allowed)), 1)

    def test_each_side_of_the_seam_is_in_its_room(self):
        header = """
SYNCRUN_EXPORT std::optional<std::vector<std::byte>> receive_message(PipeCore& pipe,
                                                                     Timeout timeout);
[[noreturn]] SYNCRUN_EXPORT void refuse(int value);
class SYNCRUN_EXPORT WorkerCall {
  bool next_slice();
};
"""
        names = room_links.names_in(header)
        self.assertEqual(names, {"receive_message", "refuse", "WorkerCall"})
        seams = {"worker_seam.hpp": names, "master_seam.hpp": {"open_session"}}
        symbols = {
            "syncrun::detail::receive_message(syncrun::detail::PipeCore&, int)",
            "syncrun::detail::refuse[abi:cxx11](int)",
            "syncrun::detail::WorkerCall::next_slice()",
        }
        for room in ("worker", "common"):
            self.assertEqual(list(room_links.wrong_sides([Object(room, "a.cpp", symbols, set())], seams)), [])
        self.assertEqual(len(list(room_links.wrong_sides([Object("launcher", "a.cpp", symbols, set())], seams))), 3)
        master = Object("worker", "a.cpp", {"syncrun::detail::open_session(int)"}, set())
        self.assertEqual(len(list(room_links.wrong_sides([master], seams))), 1)


if __name__ == "__main__":
    unittest.main()
