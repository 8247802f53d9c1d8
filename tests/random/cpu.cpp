// Sessions with CPU devices only.

#include "tests/random/cpu_kind.hpp"
#include "tests/random/functions.hpp"

namespace random_test {

AllFunctions all_functions_of(sr::Session& session) { return functions_for<Cpu>(session); }
RanksOfRows ranks_of_rows_in(sr::Session& session) { return session.function(ranks_of_rows<Cpu>); }

std::vector<std::string> device_lists(int) { return {"cpu0", "cpu0,cpu1", "cpu0,cpu1,cpu2", "cpu0,cpu1,cpu2,cpu3"}; }
int programs_per_session() { return 20; }

}  // namespace random_test
