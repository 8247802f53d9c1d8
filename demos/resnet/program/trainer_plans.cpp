#include "demos/resnet/program/trainer_plans.hpp"

#include <string>

namespace resnet {

#ifdef RESNET_HAVE_CUDA
namespace {

class TrainerPlans final : public PlanRanks {
 public:
  TrainerPlans(sr::Session& session, const sr::Replicated<Trainer>& trainer, const PassRows& rows)
      : session_(session), trainer_(trainer), rows_(rows) {}

  int count() const override { return session_.world_size(); }

  PlanPlace place_of(int rank) override {
    return plans_in(session_.function(&Trainer::plans_cuda, trainer_, "plans").on_rank(rank)()).place();
  }

  ConvPlans choose(const ConvPlans& known) override {
    const auto choose = session_.function(&Trainer::choose_plans_cuda, trainer_, "choose plans").on_rank(0);
    return plans_in(choose(known.text(), rows_));
  }

  void adopt(const ConvPlans& plans) override {
    session_.function(&Trainer::adopt_plans_cuda, trainer_, "adopt plans")(plans.text());
  }

 private:
  static ConvPlans plans_in(const Trainer::OwnBytes& bytes) {
    return ConvPlans::parse(std::string(bytes.begin(), bytes.end()));
  }

  sr::Session& session_;
  const sr::Replicated<Trainer>& trainer_;
  PassRows rows_;
};

}  // namespace

std::unique_ptr<PlanRanks> plan_ranks(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                      const PassRows& rows) {
  if (!session.devices().front().starts_with("cuda")) return nullptr;
  return std::make_unique<TrainerPlans>(session, trainer, rows);
}

#else

std::unique_ptr<PlanRanks> plan_ranks(sr::Session&, const sr::Replicated<Trainer>&, const PassRows&) { return nullptr; }

#endif

RunPlans::RunPlans(const Options& options) : options_(options) {
  if (!options.plans.empty()) in_file_ = read_plans(options.plans);
}

void RunPlans::settle(sr::Session& session, const sr::Replicated<Trainer>& trainer, const PassRows& rows,
                      Checkpoints& checkpoints, Report& report) const {
  const auto ranks = plan_ranks(session, trainer, rows);
  if (ranks == nullptr) {
    if (options_.plans.empty()) return;
    throw UsageError("--plans: expected CUDA devices, whose convolutions have plans to choose from, got " +
                     session.devices().front() + ", where equal runs give the same bits without");
  }
  PlanSources sources{.file = options_.plans, .in_file = in_file_, .in_checkpoint = checkpoints.plans()};
  if (checkpoints.goes_on()) sources.checkpoint = options_.checkpoint;
  const AgreedPlans agreed = agree_on_plans(*ranks, sources);
  if (!options_.plans.empty() && agreed.plans != in_file_) write_plans(options_.plans, agreed.plans);
  for (const std::string& note : agreed.notes) report.note(note);
  checkpoints.set_plans(agreed.plans);
}

}  // namespace resnet
