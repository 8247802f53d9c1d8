#!/usr/bin/env python3
"""Tests demos/resnet/tools/pack_images.py, run as users run it.

usage: pack_images_test.py SCRIPT DIGITS idx|folder

`idx` requires only Python. `folder` also requires Pillow, for this Python or for that of the distribution. Without
Pillow, it exits with 77.
"""

import ast
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

SKIPPED = 77
DISTRIBUTIONS_PYTHON = "/usr/bin/python3"
SCRIPT = DIGITS = Path()


class Npy(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_npy(path: Path) -> Npy:
    content = path.read_bytes()
    assert content[:8] == b"\x93NUMPY\x01\x00", content[:8]
    end = 10 + struct.unpack("<H", content[8:10])[0]
    assert end % 64 == 0 and content[end - 1 : end] == b"\n"
    header = ast.literal_eval(content[10:end].decode())
    assert header["fortran_order"] is False
    return Npy(header["descr"], header["shape"], content[end:])


def labels_of(path: Path) -> list[int]:
    labels = read_npy(path)
    assert labels.dtype == "<i8" and len(labels.shape) == 1
    return list(struct.unpack(f"<{labels.shape[0]}q", labels.data))


def write_idx(path: Path, extents: tuple[int, ...], data: bytes) -> Path:
    path.write_bytes(struct.pack(">I", 0x800 + len(extents)) + struct.pack(f">{len(extents)}I", *extents) + data)
    return path


class PackTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="syncrun-pack-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"

    def run_script(self, *arguments: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-B", SCRIPT, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def pack(self, *arguments: object) -> subprocess.CompletedProcess:
        result = self.run_script(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_refused(self, message: str, *arguments: object) -> None:
        result = self.run_script(*arguments)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(message, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([path.name for path in self.out.glob("*.npy*")], [])


class IdxTest(PackTest):
    def digits(self, split: str) -> list[Path]:
        return [DIGITS / f"digits-{split}-images-idx3-ubyte", DIGITS / f"digits-{split}-labels-idx1-ubyte"]

    def test_digits_become_rgb_images_of_the_size_with_their_labels(self):
        said = self.pack("--idx", *self.digits("train"), "--idx-test", *self.digits("test"), "--size", 32, self.out)
        expected = f"{self.out}: packed 1437 images to train on, 360 to test on, of 10 classes; skipped 0\n"
        self.assertEqual(said.stdout, expected)
        images = read_npy(self.out / "images.npy")
        self.assertEqual((images.dtype, images.shape), ("|u1", (1437, 32, 32, 3)))
        self.assertEqual(len(images.data), 1437 * 32 * 32 * 3)
        self.assertEqual(images.data[0::3], images.data[1::3])
        self.assertEqual(images.data[0::3], images.data[2::3])
        self.assertEqual(max(images.data), 255)
        self.assertEqual(read_npy(self.out / "images_test.npy").shape, (360, 32, 32, 3))
        for split, name in (("train", "labels"), ("test", "labels_test")):
            raw = self.digits(split)[1].read_bytes()[8:]
            self.assertEqual(labels_of(self.out / f"{name}.npy"), list(raw))
        self.assertEqual((self.out / "classes.txt").read_text().split(), [str(i) for i in range(10)])

    def pack_one(self, height: int, width: int, pixels: list[int], size: int) -> list[list[int]]:
        """Packs one image, and returns the rows of its red channel."""
        images = write_idx(self.folder / "images", (1, height, width), bytes(pixels))
        labels = write_idx(self.folder / "labels", (1,), b"\3")
        self.pack("--idx", images, labels, "--size", size, self.out)
        data = read_npy(self.out / "images.npy").data[0::3]
        return [list(data[y * size : (y + 1) * size]) for y in range(size)]

    def test_pixels_between_pixels_are_in_proportion(self):
        # The middles of the two columns, 0 and 200 (brightened to 255), are at 16 and 48 of 64 pixels. Between them,
        # the values rise by 255 / 32 per pixel.
        rows = self.pack_one(1, 2, [0, 200], 64)
        expected = [int(255 * min(max((x + 0.5 - 16) / 32, 0), 1) + 0.5) for x in range(64)]
        self.assertEqual(rows, [expected] * 64)
        rows = self.pack_one(2, 2, [255, 100, 50, 0], 32)
        self.assertEqual([rows[0][0], rows[0][31], rows[31][0], rows[31][31]], [255, 100, 50, 0])
        pixels = [255, *((7 * i) % 256 for i in range(1, 32 * 32))]
        self.assertEqual(sum(self.pack_one(32, 32, pixels, 32), []), pixels, "an image of the size stays as it is")

    def test_what_was_packed_before_goes(self):
        self.pack("--idx", *self.digits("test"), "--idx-test", *self.digits("test"), "--size", 32, self.out)
        said = self.pack("--idx", *self.digits("test"), "--size", 32, self.out)
        self.assertIn("syncrun-resnet --evaluate-fraction, or pack with --idx-test\n", said.stdout)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), ["classes.txt", "images.npy", "labels.npy"])

    def test_bad_files_are_refused(self):
        images = write_idx(self.folder / "images", (2, 2, 2), bytes(8))
        labels = write_idx(self.folder / "labels", (2,), bytes(2))
        short = write_idx(self.folder / "short", (2, 2, 2), bytes(7))
        three = write_idx(self.folder / "three", (3,), bytes(3))
        none = write_idx(self.folder / "none", (0, 2, 2), b"")
        no_labels = write_idx(self.folder / "no_labels", (0,), b"")
        self.assert_refused("missing: expected an IDX file, got none", "--idx", self.folder / "missing", labels, self.out)
        self.assert_refused("expected IDX magic number 0x00000803, got 0x00000801", "--idx", labels, labels, self.out)
        self.assert_refused("expected 8 bytes behind the header, got 7", "--idx", short, labels, self.out)
        self.assert_refused("expected 2 labels, as there are images, got 3", "--idx", images, three, self.out)
        self.assert_refused("expected images, got 0 of 2 x 2 pixels", "--idx", none, no_labels, self.out)

    def test_bad_options_are_refused(self):
        self.assert_refused("expected a whole number from 32 to 1024, got '31'", "a", self.out, "--size", 31)
        self.assert_refused("expected a number from 0 to below 1, got '1'", "a", self.out, "--test-fraction", 1)
        self.assert_refused("expected ROOT and OUT, got 1 folders", self.out)
        self.assert_refused("--idx-test: expected --idx beside it", "a", self.out, "--idx-test", "b", "c")
        refused = "--test-root: expected neither --test-fraction nor --idx beside it, got "
        self.assert_refused(refused + "--test-fraction", "a", self.out, "--test-root", "b", "--test-fraction", 0.1)
        self.assert_refused(refused + "--idx", "--idx", *self.digits("train"), self.out, "--test-root", "b")

    def test_without_pillow_a_folder_is_refused_with_what_it_takes(self):
        (self.folder / "PIL.py").write_text("raise ImportError('hidden by the test')")
        command = [sys.executable, "-B", SCRIPT, self.folder, self.out]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60,
                                env={**os.environ, "PYTHONPATH": str(self.folder)})
        self.assertEqual(result.returncode, 1)
        self.assertIn("requires Pillow (python3-pil, or pip install pillow), got none", result.stderr)


class FolderTest(PackTest):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.test_root = self.folder / "val"

    def save(self, name: str, size: tuple[int, int], color: object, mode: str = "RGB") -> None:
        """Saves an image of one color in ROOT, or elsewhere if the name is absolute."""
        from PIL import Image

        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, color).save(path)

    def save_classes(self, images: int) -> None:
        for i in range(images):
            self.save(f"cat/{i}.png", (60, 40), (200, i, 0))
            self.save(f"dog/{i}.jpg", (40, 60), (0, 200, 0))

    def test_classes_are_folders_in_alphabetical_order(self):
        self.save_classes(3)
        said = self.pack(self.root, self.out, "--size", 32)
        self.assertEqual(said.stdout.splitlines(), [
            f"{self.out}: packed 6 images to train on, 0 to test on, of 2 classes; skipped 0",
            "Nothing was packed to evaluate on: give syncrun-resnet --evaluate-fraction, or pack with --test-root or "
            "--test-fraction"])
        images = read_npy(self.out / "images.npy")
        self.assertEqual((images.dtype, images.shape), ("|u1", (6, 32, 32, 3)))
        self.assertEqual(labels_of(self.out / "labels.npy"), [0, 0, 0, 1, 1, 1])
        self.assertEqual((self.out / "classes.txt").read_text(), "cat\ndog\n")
        self.assertEqual(list(images.data[32 * 32 * 3 : 32 * 32 * 3 + 3]), [200, 1, 0])
        self.assertFalse((self.out / "images_test.npy").exists())

    def test_the_shorter_side_is_resized_and_the_middle_cut_out(self):
        from PIL import Image

        self.save_classes(1)
        wide = Image.new("RGB", (192, 64))  # three squares: red, green, blue
        for i, color in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
            wide.paste(color, (64 * i, 0, 64 * i + 64, 64))
        wide.save(self.root / "cat/0.png")
        self.pack(self.root, self.out, "--size", 32)
        row = read_npy(self.out / "images.npy").data[: 32 * 3]
        self.assertEqual([list(row[3 * x : 3 * x + 3]) for x in range(2, 30)], [[0, 255, 0]] * 28)

    def test_grey_and_transparent_images_become_rgb(self):
        self.save("a/1.png", (32, 32), 77, "L")
        self.save("b/1.png", (32, 32), (1, 2, 3, 0), "RGBA")
        self.pack(self.root, self.out, "--size", 32)
        data = read_npy(self.out / "images.npy").data
        self.assertEqual(list(data[:3]), [77] * 3)
        self.assertEqual(list(data[-3:]), [1, 2, 3])

    def test_a_fraction_of_each_class_is_for_the_test(self):
        self.save_classes(10)
        self.pack(self.root, self.out, "--size", 32, "--test-fraction", 0.25, "--seed", 4)
        self.assertEqual(labels_of(self.out / "labels.npy"), [0] * 7 + [1] * 7)
        self.assertEqual(labels_of(self.out / "labels_test.npy"), [0] * 3 + [1] * 3)
        green = sorted(read_npy(self.out / name).data[i * 3072 + 1] for name, n in
                       (("images.npy", 7), ("images_test.npy", 3)) for i in range(n))
        self.assertEqual(green, list(range(10)), "each image is in one of them")

    def test_classes_of_a_test_folder_have_the_labels_of_training(self):
        self.save_classes(2)
        self.save("ant/0.png", (32, 32), 0)
        self.save(self.test_root / "dog/0.png", (60, 40), (7, 8, 9))
        self.save(self.test_root / "dog/deeper/1.png", (32, 32), (7, 8, 9))
        said = self.pack(self.root, "--test-root", self.test_root, self.out, "--size", 32)
        self.assertIn(f"{self.test_root}: no test images of 2 of 3 classes, the first of them 'ant'", said.stderr)
        self.assertEqual(labels_of(self.out / "labels.npy"), [0, 1, 1, 2, 2])
        self.assertEqual(labels_of(self.out / "labels_test.npy"), [2, 2])
        self.assertEqual(read_npy(self.out / "images_test.npy").data, bytes((7, 8, 9)) * (2 * 32 * 32))
        self.assertEqual((self.out / "classes.txt").read_text(), "ant\ncat\ndog\n")

    def test_a_test_folder_that_does_not_fit_is_refused_and_what_was_packed_stays(self):
        self.save_classes(1)
        self.pack(self.root, self.out, "--size", 32)
        before = {path: path.read_bytes() for path in self.out.iterdir()}

        def refused(message: str, test_root: Path) -> None:
            result = self.run_script(self.root, self.out, "--test-root", test_root)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)
            self.assertEqual({path: path.read_bytes() for path in self.out.iterdir()}, before)

        refused(f"{self.test_root}: expected a folder with a folder per class, got none", self.test_root)
        self.test_root.mkdir()
        refused(f"{self.test_root}: expected a folder per class, 1 or more, got 0", self.test_root)
        (self.test_root / "cat").mkdir()
        refused(f"{self.test_root / 'cat'}: expected one image or more", self.test_root)
        self.save(self.test_root / "cat/1.png", (32, 32), 0)
        self.save(self.test_root / "cow/1.png", (32, 32), 0)
        refused(f"{self.test_root / 'cow'}: expected a class that {self.root} has, got 'cow'", self.test_root)
        refused(f"--test-root: expected another folder than ROOT, got {self.root}", self.root / "cat/..")

    def test_an_image_that_cannot_be_read_is_named_or_skipped_and_does_not_count(self):
        self.save_classes(3)
        for i in range(4):
            self.save(self.test_root / f"cat/{i}.png", (32, 32), 0)
        for bad in (self.test_root / "cat/2.png", self.root / "cat/1.png"):
            bad.write_bytes(b"no image")
            self.assert_refused(f"{bad}: expected an image that can be read", self.root, self.out, "--test-root", self.test_root)
        said = self.pack(self.root, self.out, "--test-root", self.test_root, "--size", 32, "--on-error", "skip")
        self.assertIn(f"skipped {self.root / 'cat/1.png'}", said.stderr)
        self.assertEqual(said.stdout, f"{self.out}: packed 5 images to train on, 3 to test on, of 2 classes; skipped 2\n")
        self.assertEqual(labels_of(self.out / "labels.npy"), [0, 0, 1, 1, 1])
        self.assertEqual(labels_of(self.out / "labels_test.npy"), [0, 0, 0])
        self.assertEqual(read_npy(self.out / "images.npy").shape[0], 5)

    def test_folders_without_images_are_refused(self):
        self.assert_refused("expected a folder with a folder per class, got none", self.root, self.out)
        self.save("cat/1.png", (32, 32), 0)
        self.assert_refused("expected a folder per class, 2 or more, got 1", self.root, self.out)
        (self.root / "dog").mkdir()
        (self.root / "dog/notes.txt").write_text("none yet")
        self.assert_refused(f"{self.root / 'dog'}: expected one image or more", self.root, self.out)
        (self.root / "dog/1.png").write_bytes(b"")
        (self.root / "cat/1.png").write_bytes(b"")
        self.assert_refused("expected one image that can be read, got none of 2", self.root, self.out, "--on-error", "skip")


def has_pillow(python: str) -> bool:
    command = [python, "-c", "import PIL.Image"]
    return os.path.exists(python) and subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def main() -> int:
    global SCRIPT, DIGITS
    SCRIPT, DIGITS, which = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if which == "folder" and not has_pillow(sys.executable):
        # The Pillow of the distribution is for the Python of the distribution, and CMake may have found another Python.
        if has_pillow(DISTRIBUTIONS_PYTHON):
            return subprocess.run([DISTRIBUTIONS_PYTHON, "-B", *sys.argv], timeout=110).returncode
        print("skipped: Pillow is not installed")
        return SKIPPED
    suite = unittest.defaultTestLoader.loadTestsFromTestCase({"idx": IdxTest, "folder": FolderTest}[which])
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
