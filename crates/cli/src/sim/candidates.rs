//! The policies that are compared: those that were asked for, else a grid of each one's knob.

use anyhow::{anyhow, ensure, Result};
use terrace_core::plan::SLOWDOWN_DEFAULT;

use crate::config::cold_age::ColdAgeArgs;
use crate::config::{
    check_alpha, check_tier_number, parse_slowdown, percent, ColdAgeConfig, Config, PolicyConfig,
    PolicyKind, Threshold,
};

/// A policy with its knobs.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// For people.
    pub name: String,
    /// For [`crate::policy::build`].
    pub policy: PolicyConfig,
    /// Windows for which a page that came back stays, if they are not what the others have.
    pub cooling_windows: Option<u32>,
}

/// Options that choose policies; those of one value may be given several times. A knob is for
/// those of the policies asked for whose knob it is, and asks for one if there is none.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PolicyArgs {
    /// Only these policies, at the knobs given or their defaults
    #[arg(long, value_enum)]
    pub policy: Vec<PolicyKind>,
    /// Knob of the analytical policy
    #[arg(long)]
    pub alpha: Vec<f64>,
    /// Knob of the slowdown policy, such as 5%
    #[arg(long, value_name = "PERCENT")]
    pub max_slowdown: Vec<String>,
    /// Knob of the policies waterfall and two-tier: of those with --policy, else of waterfall
    #[arg(long)]
    pub threshold: Vec<String>,
    /// Compressed tier of the policy two-tier, by its number from 1
    #[arg(long, value_name = "N")]
    pub two_tier: Vec<u32>,
    /// Knobs of the policy cold-age, each once
    #[command(flatten)]
    pub cold_age: ColdAgeArgs,
}

const ALPHAS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
const SLOWDOWNS: [f64; 3] = [0.02, SLOWDOWN_DEFAULT, 0.10];
const THRESHOLDS: [Threshold; 3] =
    [Threshold::Conservative, Threshold::Moderate, Threshold::Aggressive];

fn named(policy: PolicyConfig) -> Candidate {
    let name = policy.kind.name();
    let share = |share: f64| format!("{} %", (share * 1e4).round() / 100.0);
    let name = match policy.kind {
        PolicyKind::Analytical => format!("{name} {:.2}", policy.alpha),
        PolicyKind::Slowdown => format!("{name} {}", share(policy.max_slowdown)),
        PolicyKind::Waterfall => format!("{name} {}", policy.threshold),
        PolicyKind::TwoTier => match policy.two_tier {
            1 => format!("{name} {}", policy.threshold),
            tier => format!("{name} {}, {tier}", policy.threshold),
        },
        PolicyKind::ColdAge if policy.cold_age != ColdAgeConfig::default() => {
            format!("{name} {} %", percent(policy.cold_age.promotion_rate))
        }
        _ => name.into(),
    };
    Candidate { name, policy, cooling_windows: None }
}

/// The policy that programs get unless another is asked for, as the bar means it.
pub fn of_bar(base: &Config) -> Candidate {
    let kind = PolicyKind::Slowdown;
    named(PolicyConfig { kind, max_slowdown: SLOWDOWN_DEFAULT, ..base.policy })
}

/// The fixed knobs that the bar looks for the best of.
pub fn grid(base: &Config) -> Vec<Candidate> {
    let alpha = |step: u32| PolicyConfig {
        kind: PolicyKind::Analytical,
        alpha: f64::from(step) / 20.0,
        ..base.policy
    };
    (0..20).map(alpha).map(named).collect()
}

/// Knobs that are given; of an empty list the policies have their own.
#[derive(Default)]
struct Knobs {
    alphas: Vec<f64>,
    slowdowns: Vec<f64>,
    thresholds: Vec<Threshold>,
    tiers: Vec<u8>,
    cold_age: Option<ColdAgeConfig>,
}

impl Knobs {
    /// What is tried unless something is asked for.
    fn grid() -> Knobs {
        let (alphas, slowdowns) = (ALPHAS.into(), SLOWDOWNS.into());
        Knobs { alphas, slowdowns, thresholds: THRESHOLDS.into(), ..Knobs::default() }
    }

    /// Whether one is given that asks for this policy where it is not named. A threshold is for
    /// `two-tier` where that is asked for.
    fn ask_for(&self, kind: PolicyKind, named: &[PolicyKind]) -> bool {
        let two_tier = !self.tiers.is_empty();
        match kind {
            PolicyKind::Analytical => !self.alphas.is_empty(),
            PolicyKind::Slowdown => !self.slowdowns.is_empty(),
            PolicyKind::Waterfall => {
                let has_other = two_tier || named.contains(&PolicyKind::TwoTier);
                !self.thresholds.is_empty() && !has_other
            }
            PolicyKind::TwoTier => two_tier,
            PolicyKind::ColdAge => self.cold_age.is_some(),
            PolicyKind::None | PolicyKind::KernelTwoTier => false,
        }
    }

    /// The policy of `base` with each of its knobs.
    fn of(&self, base: PolicyConfig) -> Vec<PolicyConfig> {
        let thresholds = || or_own(&self.thresholds, base.threshold);
        let thresholds = || thresholds().map(|threshold| PolicyConfig { threshold, ..base });
        match base.kind {
            PolicyKind::Analytical => or_own(&self.alphas, base.alpha)
                .map(|alpha| PolicyConfig { alpha, ..base })
                .collect(),
            PolicyKind::Slowdown => or_own(&self.slowdowns, base.max_slowdown)
                .map(|max_slowdown| PolicyConfig { max_slowdown, ..base })
                .collect(),
            PolicyKind::Waterfall => thresholds().collect(),
            PolicyKind::TwoTier => or_own(&self.tiers, base.two_tier)
                .flat_map(|two_tier| thresholds().map(move |p| PolicyConfig { two_tier, ..p }))
                .collect(),
            PolicyKind::ColdAge => {
                vec![PolicyConfig { cold_age: self.cold_age.unwrap_or(base.cold_age), ..base }]
            }
            PolicyKind::None | PolicyKind::KernelTwoTier => vec![base],
        }
    }
}

/// These, or the one that there is without them.
fn or_own<T: Copy>(given: &[T], own: T) -> impl Iterator<Item = T> + '_ {
    let own = given.is_empty().then_some(own);
    given.iter().copied().chain(own)
}

impl PolicyArgs {
    /// The candidates, in the order in which they are shown, for so many compressed tiers.
    pub fn candidates(&self, base: &Config, tiers: usize) -> Result<Vec<Candidate>> {
        let knobs = self.knobs(base, tiers)?;
        let is_asked = |kind| self.policy.contains(&kind) || knobs.ask_for(kind, &self.policy);
        let asked: Vec<PolicyKind> =
            PolicyKind::ALL.into_iter().filter(|&kind| is_asked(kind)).collect();
        let own = |kind| PolicyConfig { kind, ..base.policy };
        let all: Vec<PolicyConfig> = if asked.is_empty() {
            let kinds = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::None);
            let of = |kind| match kind {
                // Of a baseline one is enough.
                PolicyKind::TwoTier => vec![own(kind)],
                _ => Knobs::grid().of(own(kind)),
            };
            kinds.flat_map(of).collect()
        } else {
            asked.into_iter().flat_map(|kind| knobs.of(own(kind))).collect()
        };
        Ok(all.into_iter().map(named).collect())
    }

    fn knobs(&self, base: &Config, tiers: usize) -> Result<Knobs> {
        let wrong = |option: &'static str| move |e: String| anyhow!("{option}: {e}");
        let mut knobs = Knobs::default();
        for &alpha in &self.alpha {
            knobs.alphas.push(check_alpha(alpha).map_err(wrong("--alpha"))?);
        }
        for text in &self.max_slowdown {
            knobs.slowdowns.push(parse_slowdown(text).map_err(wrong("--max-slowdown"))?);
        }
        for text in &self.threshold {
            knobs.thresholds.push(Threshold::parse(text).map_err(wrong("--threshold"))?);
        }
        for &number in &self.two_tier {
            let tier = check_tier_number(number).map_err(wrong("--two-tier"))?;
            ensure!(
                usize::from(tier) <= tiers,
                "--two-tier: there is no tier {tier}; use 1 to {tiers}"
            );
            knobs.tiers.push(tier);
        }
        if self.cold_age.given().is_some() {
            let mut cold_age = base.policy.cold_age;
            self.cold_age.put_over(&mut cold_age)?;
            let window_s = base.run.window_s;
            let given = [
                ("minute", self.cold_age.cold_age_minute_s),
                ("scan", self.cold_age.cold_age_scan_s),
            ];
            for (what, seconds) in given {
                ensure!(
                    seconds.is_none_or(|seconds| seconds >= window_s),
                    "--cold-age-{what}-s: a {what} is a window long at least; use {window_s} or \
                     more, as the trace has it"
                );
            }
            knobs.cold_age = Some(cold_age);
        }
        Ok(knobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    fn names(args: PolicyArgs) -> Vec<String> {
        let base = Config::from_preset(Preset::Auto);
        args.candidates(&base, 3).unwrap().into_iter().map(|c| c.name).collect()
    }

    #[test]
    fn a_grid_unless_something_is_asked_for() {
        assert_eq!(names(PolicyArgs::default()).len(), 13);
        let one = PolicyArgs { max_slowdown: vec!["2.5%".into()], ..PolicyArgs::default() };
        assert_eq!(names(one), ["slowdown 2.5 %"]);
        let two = PolicyArgs {
            policy: vec![PolicyKind::Waterfall, PolicyKind::None],
            alpha: vec![0.25, 0.5],
            ..PolicyArgs::default()
        };
        let expected = ["analytical 0.25", "analytical 0.50", "waterfall moderate", "none"];
        assert_eq!(names(two), expected);
        let wrong = PolicyArgs { alpha: vec![1.5], ..PolicyArgs::default() };
        assert!(error(wrong).starts_with("--alpha: "));
    }

    fn error(args: PolicyArgs) -> String {
        args.candidates(&Config::from_preset(Preset::Auto), 3).unwrap_err().to_string()
    }

    #[test]
    fn a_threshold_is_for_those_of_the_policies_asked_for_whose_knob_it_is() {
        let of = |policy: &[PolicyKind], two_tier: &[u32]| {
            let threshold = vec!["75%".to_owned(), "12".to_owned()];
            let (policy, two_tier) = (policy.to_vec(), two_tier.to_vec());
            names(PolicyArgs { policy, threshold, two_tier, ..PolicyArgs::default() })
        };
        let (waterfall, two_tier) =
            (["waterfall 75%", "waterfall 12"], ["two-tier 75%", "two-tier 12"]);
        assert_eq!(of(&[], &[]), waterfall);
        assert_eq!(of(&[PolicyKind::TwoTier], &[]), two_tier);
        let both = of(&[PolicyKind::TwoTier, PolicyKind::Waterfall], &[]);
        assert_eq!(both, [waterfall, two_tier].concat());
        let beside = of(&[PolicyKind::Slowdown], &[]);
        assert_eq!(beside, ["slowdown 5 %", "waterfall 75%", "waterfall 12"]);
        let to = of(&[], &[1, 3]);
        assert_eq!(to, ["two-tier 75%", "two-tier 12", "two-tier 75%, 3", "two-tier 12, 3"]);
        let nowhere = PolicyArgs { two_tier: vec![4], ..PolicyArgs::default() };
        assert_eq!(error(nowhere), "--two-tier: there is no tier 4; use 1 to 3");
    }

    #[test]
    fn cold_age_has_its_knobs() {
        let with = |cold_age| PolicyArgs { cold_age, ..PolicyArgs::default() };
        let rate = ColdAgeArgs { promotion_rate: Some("0.5%".into()), ..ColdAgeArgs::default() };
        assert_eq!(names(with(rate)), ["cold-age 0.5 %"]);
        let minute = ColdAgeArgs { cold_age_minute_s: Some(1.0), ..ColdAgeArgs::default() };
        assert!(error(with(minute)).starts_with("--cold-age-minute-s: a minute is a window long"));
    }
}
