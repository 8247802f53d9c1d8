#pragma once

// Reads the texts in which a user lists devices and gives them names. The two forms are that of `--devices`,
// "dev0=cuda0,dev1=cuda1,cuda2", and that of Theano, "dev0->cuda0;dev1->cuda1".
//
// Ranks are in the order in which the devices occur first. A device with several names occurs several times, and has
// one rank. These functions do not check whether the machine has the devices.

#include <string_view>

#include "master/devices/chosen_devices.hpp"

namespace syncrun::detail::master::devices {

/// Reads the form of `--devices`. Names are optional. `option` is the option or variable that contains the text, for
/// messages. Throws Error (usage) that says what was expected, what was got and what to do.
ChosenDevices parse_device_list(std::string_view option, std::string_view text);

/// Reads Theano's form. Each device has a name. As in Theano, there may be spaces around names and devices. Throws as
/// parse_device_list.
ChosenDevices parse_contexts(std::string_view option, std::string_view text);

}  // namespace syncrun::detail::master::devices
