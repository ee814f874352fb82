//! From a configuration to the policy that plans by it: one place, for live planners and for
//! `terrace sim`.

use terrace_core::plan::{
    Analytical, ColdAgePolicy, Model, Policy, Slowdown, Threshold, Torture, TwoTier, Waterfall,
};
use terrace_core::tier::TierId;

use crate::config::{self, Config, PolicyKind};

/// The policy of a run; `None` where nothing is ever moved.
pub fn build(config: &Config) -> Option<Box<dyn Policy>> {
    let (policy, run) = (config.policy, &config.run);
    if run.torture_seed != 0 {
        return Some(Box::new(Torture::new(run.torture_seed)));
    }
    let residence = residence(config);
    let limits = config.limits();
    match policy.kind {
        PolicyKind::None => None,
        PolicyKind::Analytical => {
            let model = Model::new(residence, policy.usd_per_core_month, run.window_s);
            let analytical = match policy.money {
                Some(money) => Analytical::for_money(money),
                None => Analytical::new(policy.alpha),
            };
            Some(Box::new(analytical.with_model(model).with_limits(limits)))
        }
        PolicyKind::Slowdown => {
            let slowdown = Slowdown::new(policy.max_slowdown)
                .with_residence(residence)
                .with_core_price(policy.usd_per_core_month, run.window_s)
                .with_limits(limits);
            Some(Box::new(slowdown))
        }
        PolicyKind::Waterfall | PolicyKind::KernelTwoTier => {
            Some(Box::new(Waterfall::new(threshold(policy.threshold))))
        }
        PolicyKind::ColdAge => {
            let settings = policy.cold_age.settings(run.window_s);
            Some(Box::new(ColdAgePolicy::new(settings)))
        }
        PolicyKind::TwoTier => {
            let tier = TierId(policy.two_tier);
            Some(Box::new(TwoTier::new(threshold(policy.threshold), tier)))
        }
    }
}

/// Windows that a page which came back stays: it comes back somewhere in a window and cools for the
/// given number of them, counting that one.
pub fn residence(config: &Config) -> f64 {
    f64::from(config.run.cooling_windows) - 0.5
}

fn threshold(t: config::Threshold) -> Threshold {
    match (t, t.share()) {
        (config::Threshold::Hotness(h), _) => Threshold::Value(h as f32),
        (_, share) => Threshold::Share(share.unwrap_or(0.0)),
    }
}
