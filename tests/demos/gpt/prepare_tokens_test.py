#!/usr/bin/env python3
"""Tests demos/gpt/tools/prepare_tokens.py, run as users run it.

usage: prepare_tokens_test.py SCRIPT
"""

import array
import bz2
import gzip
import lzma
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path()
TEXT = b"the cat and the hat; the bat.\nThe end of the tale: the cat sat.\n" * 20
FIRST_LINE = "syncrun-gpt vocabulary 1"


def tokens_in(path: Path) -> list[int]:
    tokens = array.array("H")
    tokens.frombytes(path.read_bytes())
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def texts_of(vocabulary: Path) -> list[bytes]:
    """The bytes of each token."""
    lines = vocabulary.read_text().splitlines()
    assert lines[0] == FIRST_LINE, lines[0]
    texts = [bytes([byte]) for byte in range(256)]
    for line in lines[1:]:
        first, second = map(int, line.split())
        texts.append(texts[first] + texts[second])
    return texts


class Prepare(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_bytes(TEXT)
        self.out = self.folder / "out"

    def run_script(self, *words: object) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, words)], capture_output=True, text=True)

    def prepare(self, *words: object) -> str:
        done = self.run_script(self.text, self.out, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(file.name for file in self.out.iterdir()), ["train.bin", "val.bin", "vocab.txt"])
        return done.stdout

    def text_back(self) -> bytes:
        texts = texts_of(self.out / "vocab.txt")
        return b"".join(texts[token] for name in ("train.bin", "val.bin") for token in tokens_in(self.out / name))

    def test_bytes_are_tokens_and_the_end_is_held_out_from_the_begin_of_a_line(self) -> None:
        self.prepare("--held-out", 0.25)
        held_out = bytes(tokens_in(self.out / "val.bin"))
        self.assertEqual(bytes(tokens_in(self.out / "train.bin")) + held_out, TEXT)
        self.assertEqual((self.out / "vocab.txt").read_text(), FIRST_LINE + "\n")
        self.assertEqual(TEXT[: -len(held_out)][-1:], b"\n")
        self.assertAlmostEqual(len(held_out) / len(TEXT), 0.25, delta=0.05)

    def test_byte_pairs_give_the_text_back_with_fewer_tokens(self) -> None:
        self.prepare("--tokens", "bpe", "--vocab-size", 275)
        texts = texts_of(self.out / "vocab.txt")
        self.assertEqual(len(texts), 275)
        self.assertEqual(self.text_back(), TEXT)
        self.assertLess(len(tokens_in(self.out / "train.bin")), len(TEXT) / 2)
        self.assertIn(b" the", texts)
        for text in texts[256:]:
            self.assertNotIn(b" ", text[1:], "a token reaches over the end of a word")

    def test_the_most_frequent_pair_is_the_first(self) -> None:
        self.text.write_bytes(b"xyxyxy abab xy\n" * 10)
        self.prepare("--tokens", "bpe", "--vocab-size", 258)
        self.assertEqual(texts_of(self.out / "vocab.txt")[256:], [b"xy", b"ab"])

    def test_the_held_out_part_does_not_change_the_vocabulary(self) -> None:
        self.prepare("--tokens", "bpe", "--vocab-size", 270)
        before = (self.out / "vocab.txt").read_text()
        self.text.write_bytes(TEXT[: -len(TEXT) // 20] + b"q" * (len(TEXT) // 20))
        self.prepare("--tokens", "bpe", "--vocab-size", 270)
        self.assertEqual((self.out / "vocab.txt").read_text(), before)

    def test_the_tokens_of_gpt2_have_its_order_of_bytes_and_its_chunks(self) -> None:
        merges = self.folder / "merges.txt"
        merges.write_text("#version: 0.2\nh e\nt he\n\u0120 the\n! !\n\u0120 \u0120\n1 2\n\u00c3 \u00a9\n", encoding="utf-8")
        the, spaced, double, blanks, twelve, accent = 257, 258, 259, 260, 261, 262
        known = {"!": 0, "A": 32, "\n": 198, " ": 220, "'": 6, "s": 82}  # as in GPT-2's encoder.json
        for text, tokens in (("the!!! the", [the, double, known["!"], spaced]),
                             ("A   the\n\nA", [known["A"], blanks, spaced, known["\n"], known["\n"], known["A"]]),
                             ("12!!\u00e9's", [twelve, double, accent, known["'"], known["s"]]),
                             ("the12\u00b2", [the, twelve, 126, 110])):  # a superscript is a number
            self.text.write_text(text + "\n" + text, encoding="utf-8")
            size = len(text.encode())
            self.prepare("--tokens", "gpt2", "--merges", merges, "--held-out", size / (2 * size + 1))
            self.assertEqual(tokens_in(self.out / "val.bin"), tokens)
            lines = (self.out / "vocab.txt").read_text().splitlines()
            self.assertEqual(lines[:3], [FIRST_LINE + " gpt2", "71 68", "83 256"])

    def test_compressed_texts_are_read(self) -> None:
        for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
            self.text = self.folder / ("text.txt" + suffix)
            self.text.write_bytes(compress(TEXT))
            self.prepare()
            self.assertEqual(self.text_back(), TEXT)

    def refused(self, words: list, code: int, why: str) -> None:
        done = self.run_script(*words)
        self.assertEqual(done.returncode, code)
        self.assertIn(why, done.stderr)
        self.assertFalse(self.out.exists())

    def test_what_cannot_be_prepared_is_refused(self) -> None:
        self.refused([self.folder / "absent", self.out], 1, "cannot read")
        damaged = self.folder / "damaged.gz"
        damaged.write_bytes(gzip.compress(TEXT)[:-20])
        self.refused([damaged, self.out], 1, "cannot read")
        self.refused([self.text, self.out, "--tokens", "bpe", "--vocab-size", 5000], 1, "--vocab-size: expected at most ")
        self.refused([self.text, self.out, "--vocab-size", 100], 2, "--vocab-size: expected a number from 256 to 65536")
        self.refused([self.text, self.out, "--held-out", 1], 2, "--held-out: expected a number above 0 and below 1")
        self.refused([self.text, self.out, "--tokens", "gpt2"], 2, "--merges: expected GPT-2's file merges.txt")
        merges = self.folder / "merges.txt"
        merges.write_text("a b\nab d\nx yz\n")
        self.refused([self.text, self.out, "--tokens", "gpt2", "--merges", merges], 1,
                     "merges.txt, line 3: expected two tokens of lines before")
        self.text.write_bytes(b"abc")
        self.refused([self.text, self.out], 1, "expected a text with at least two bytes in each part, found 3 and 0")


if __name__ == "__main__":
    SCRIPT = Path(sys.argv.pop(1))
    unittest.main()
