#pragma once

// Parameters after six steps of each rule: written by update_reference.py, which says how they come about.

#include <array>

namespace update_reference {

inline constexpr int kParameters = 5;
inline constexpr int kSteps = 6;
using Values = std::array<double, kParameters>;

constexpr double start(int i) { return ((3 * i) % 7 - 3) / 4.0; }
constexpr double gradient(int step, int i) { return ((7 * i + 5 * step) % 11 - 5) / 8.0; }

// clang-format off
inline constexpr Values kSgd{
    -0.8625, 0.05, 0.8250000000000001, -0.2875, 0.4875};
inline constexpr Values kSgdDecayed{
    -0.8577241222738079, 0.049675611987737456, 0.8205360602610956, -0.285903882453736, 0.48440793944530947};
inline constexpr Values kMomentum{
    -1.0740041718958797, 0.29006347115796255, 0.8032795691917484, -0.3607623096289536, 0.5316836748123885};
inline constexpr Values kNesterov{
    -1.14836350345597, 0.3093957783071252, 0.8687711897675062, -0.38524360739186536, 0.5122420818843931};
inline constexpr Values kAdagrad{
    -0.7998572925338377, 0.10330897496673042, 0.7850299356599079, -0.23928800513896575, 0.5150850745867802};
inline constexpr Values kRmsProp{
    -0.767339731638229, 0.03221476269591237, 0.7634047036077453, -0.24709998365451719, 0.5035174214641197};
inline constexpr Values kAdadelta{
    -0.7567046110591882, 0.004085781763555472, 0.7566175571590215, -0.2514345861070737, 0.49910046192005897};
inline constexpr Values kAdam{
    -0.7767426329006142, 0.029665600711675125, 0.7454926729926585, -0.25277215116540247, 0.5124583308846998};
inline constexpr Values kAdamDecayed{
    -0.7589760627020827, 0.026945058794895112, 0.7385932468088571, -0.24948978595370253, 0.5043630643046476};
inline constexpr Values kAdamW{
    -0.7721946045317499, 0.02956277541519734, 0.741053116830799, -0.25129197475736276, 0.5093940776218003};
inline constexpr Values kAdamax{
    -0.7635698062223907, 0.04784935669560359, 0.7355889828393882, -0.2475097165075472, 0.5224956620557522};
// clang-format on

}  // namespace update_reference
