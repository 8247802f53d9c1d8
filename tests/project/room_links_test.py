"""Tests that room_links.py finds violations."""

import sys
import unittest

sys.dont_write_bytecode = True
import room_links  # noqa: E402
from room_links import Object  # noqa: E402

SPAWN = Object("master", "spawn.cpp", {"syncrun::detail::spawn()"}, {"syncrun::detail::wait()"})
SERVE = Object("worker", "serve.cpp", {"syncrun::detail::serve()"}, {"syncrun::detail::wait()", "malloc"})
WAIT = Object("common", "wait.cpp", {"syncrun::detail::wait()"}, {"futex"})
SETTINGS = Object("master_base", "settings.cpp", {"syncrun::detail::settings()"}, {"syncrun::detail::wait()"})
OPTIONS = Object("master/command_line", "options.cpp", {"command::options()"}, {"syncrun::detail::settings()"})
DOCTOR = Object("master/doctor", "doctor.cpp", {"doctor::run()"}, {"syncrun::detail::settings()"})
STREAM = Object("worker/devices/cuda", "stream.cpp", {"syncrun::detail::stream()"}, {"syncrun::detail::serve()"})
TRANSPORT = Object("master/nodes/mpi", "mpi_transport.cpp", {"syncrun::detail::open()"}, set())
MODULE = Object("libtorch", "bound_module.cpp", {"syncrun::libtorch::detail::bind()"}, {"syncrun::detail::serve()"})
ROOMS = [SPAWN, SERVE, WAIT, SETTINGS, OPTIONS, DOCTOR, STREAM, TRANSPORT, MODULE]


class RoomLinks(unittest.TestCase):
    def links(self, *objects, allowed=None):
        return list(room_links.wrong_links([*ROOMS, *objects], allowed or {}))

    def test_rooms_that_keep_to_themselves_pass_and_others_are_named(self):
        self.assertEqual(self.links(), [])
        self.assertEqual(
            self.links(Object("master", "task.cpp", set(), {"syncrun::detail::serve()"})),
            ["master/task.cpp uses syncrun::detail::serve() of worker/serve.cpp"],
        )

    def test_every_room_uses_what_it_may_and_nothing_else(self):
        rooms = {each.room: symbol for each in ROOMS for symbol in each.defines}
        self.assertEqual(set(rooms), set(room_links.MAY_USE))
        allowed = {
            ("master_base", "common"), ("master", "common"), ("master", "master_base"),
            ("master/command_line", "common"), ("master/command_line", "master_base"),
            ("master/command_line", "master/doctor"), ("master/doctor", "common"), ("master/doctor", "master_base"),
            ("worker", "common"), ("worker/devices/cuda", "common"), ("worker/devices/cuda", "worker"),
            ("master/nodes/mpi", "common"), ("libtorch", "common"), ("libtorch", "worker"),
        }
        for room in rooms:
            for other, symbol in rooms.items():
                found = self.links(Object(room, "a.cpp", set(), {symbol}))
                self.assertEqual(found == [], room == other or (room, other) in allowed, (room, other))

    def test_every_room_is_looked_at(self):
        listed = {each.room for each in ROOMS}
        self.assertEqual(room_links.unchecked_rooms(ROOMS, listed), set())
        for missing in ROOMS:
            others = [each for each in ROOMS if each is not missing]
            self.assertEqual(room_links.unchecked_rooms(others, listed), {missing.room})
            expected = set() if missing.room in room_links.OPTIONAL else {missing.room}
            self.assertEqual(room_links.unchecked_rooms(others, listed - {missing.room}), expected)
        other = Object("other", "a.cpp", {"f()"}, set())
        self.assertEqual(room_links.unchecked_rooms([*ROOMS, other], listed | {"other"}), {"other"})

    def test_what_is_allowed_is_allowed_to_one_object(self):
        uses = {"syncrun::detail::serve()"}
        allowed = {"master/a.cpp": uses}
        self.assertEqual(self.links(Object("master", "a.cpp", set(), uses), allowed=allowed), [])
        self.assertEqual(len(self.links(Object("master", "b.cpp", set(), uses), allowed=allowed)), 1)

    def test_each_side_of_the_interface_is_in_its_room(self):
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
        interfaces = {"worker_interface.hpp": names, "master_interface.hpp": {"open_session"}}
        symbols = {
            "syncrun::detail::receive_message(syncrun::detail::PipeCore&, int)",
            "syncrun::detail::refuse[abi:cxx11](int)",
            "syncrun::detail::WorkerCall::next_slice()",
        }
        for room in ("worker", "common"):
            self.assertEqual(list(room_links.wrong_sides([Object(room, "a.cpp", symbols, set())], interfaces)), [])
        self.assertEqual(len(list(room_links.wrong_sides([Object("master", "a.cpp", symbols, set())], interfaces))), 3)
        master = Object("worker", "a.cpp", {"syncrun::detail::open_session(int)"}, set())
        self.assertEqual(len(list(room_links.wrong_sides([master], interfaces))), 1)


if __name__ == "__main__":
    unittest.main()
