#pragma once

// Writes .npy files and data sets for tests. It shares no code with their readers.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

/// Writes a .npy file of version 1.
template <class T>
void write_npy(const std::filesystem::path& file, const std::string& dtype, const std::string& shape,
               const std::vector<T>& values) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ').append("\n");
  std::ofstream stream(file, std::ios::binary);
  stream << "\x93NUMPY" << '\1' << '\0' << static_cast<char>(header.size() % 256)
         << static_cast<char>(header.size() / 256) << header;
  stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

/// Writes files of `rows` images of size x size pixels, and their labels in `classes` classes. The brightness of an
/// image shows its class.
inline void write_pair(const std::filesystem::path& folder, const std::string& suffix, std::size_t rows,
                       std::size_t size, std::size_t classes) {
  std::vector<std::uint8_t> images;
  std::vector<std::int64_t> labels;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t label = (row * 7 + row / classes) % classes;
    for (std::size_t i = 0; i < size * size * 3; ++i) {
      const std::size_t noise = (row * 31 + i * 17) % 20;
      images.push_back(static_cast<std::uint8_t>(label * 230 / classes + noise));
    }
    labels.push_back(static_cast<std::int64_t>(label));
  }
  const std::string n = std::to_string(rows);
  const std::string s = std::to_string(size);
  write_npy(folder / ("images" + suffix + ".npy"), "|u1", "(" + n + ", " + s + ", " + s + ", 3)", images);
  write_npy(folder / ("labels" + suffix + ".npy"), "<i8", "(" + n + ",)", labels);
}
