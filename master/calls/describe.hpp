#pragma once

// Texts about functions, their arguments and their outputs, for messages and for users who ask for a description.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "master/records/records.hpp"

namespace syncrun::detail::master::calls {

/// "argument 1 (Scattered 'labels') of 'step'"; without a name, "argument 1 (Scattered) of 'step'".
std::string describe_argument(const records::FunctionRecord& function, std::size_t index, std::string_view name = {});

/// "output 0 (mean)". If the outputs have no names, "output 0".
std::string describe_output(const records::FunctionRecord& function, std::size_t index);

/// "Data 'labels'". Without a name, "this Data".
std::string describe_data(const records::DataRecord& data);

/// "'weights', 'bias'"
std::string in_quotes(const std::vector<std::string>& names);

}  // namespace syncrun::detail::master::calls
