"""Tests of the rule on commits and of the phrases it shares with the other house rules."""

import sys
import unittest

sys.dont_write_bytecode = True
from commit_subjects import wrong_subject  # noqa: E402
from plain_phrases import found_phrases  # noqa: E402


class CommitSubjects(unittest.TestCase):
    def test_a_plain_imperative_subject_is_accepted(self):
        for subject in ("Report ENOSPC as a full disk", "Feed the network from files", "Bring the headers along"):
            self.assertEqual(wrong_subject(subject), [], subject)

    def test_a_subject_has_at_most_72_characters(self):
        self.assertEqual(wrong_subject("Add " + "x" * 68), [])
        self.assertIn("73 characters", wrong_subject("Add " + "x" * 69)[0])

    def test_a_subject_begins_with_a_verb_in_the_imperative(self):
        for subject in ("Added a test", "Adding a test", "The test is added", "add a test", ""):
            self.assertNotEqual(wrong_subject(subject), [], subject)

    def test_a_subject_has_no_period(self):
        self.assertEqual(wrong_subject("Add a test."), ["it ends with a period"])

    def test_a_subject_has_none_of_the_phrases(self):
        self.assertNotEqual(wrong_subject("Report a full disk as no want of memory"), [])


class PlainPhrases(unittest.TestCase):
    def test_a_phrase_is_found_in_any_case(self):
        self.assertEqual(found_phrases("Eight were not To Be Had."), [("To Be Had", "'available'")])

    def test_plain_text_has_none(self):
        self.assertEqual(found_phrases("Returns null if there is none of that name."), [])


if __name__ == "__main__":
    unittest.main()
