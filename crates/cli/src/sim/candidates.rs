//! The policies that are compared: those that were asked for, else a grid of each one's knob.

use anyhow::{anyhow, Result};
use terrace_core::plan::SLOWDOWN_DEFAULT;

use crate::config::{check_alpha, parse_slowdown, Config, PolicyConfig, PolicyKind, Threshold};

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

/// Options that choose policies; each may be given several times.
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
    /// Knob of the waterfall policy
    #[arg(long)]
    pub threshold: Vec<String>,
}

const ALPHAS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
const SLOWDOWNS: [f64; 3] = [0.02, SLOWDOWN_DEFAULT, 0.10];
const THRESHOLDS: [Threshold; 3] =
    [Threshold::Conservative, Threshold::Moderate, Threshold::Aggressive];

fn named(policy: PolicyConfig) -> Candidate {
    let name = policy.kind.name();
    let name = match policy.kind {
        PolicyKind::Analytical => format!("{name} {:.2}", policy.alpha),
        PolicyKind::Slowdown => format!("{name} {} %", (policy.max_slowdown * 1e4).round() / 100.0),
        PolicyKind::Waterfall => format!("{name} {}", policy.threshold),
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

impl PolicyArgs {
    /// The candidates, in the order in which they are shown.
    pub fn candidates(&self, base: &Config) -> Result<Vec<Candidate>> {
        let wrong = |option: &'static str| move |e: String| anyhow!("{option}: {e}");
        let mut alphas = Vec::new();
        for &alpha in &self.alpha {
            alphas.push(check_alpha(alpha).map_err(wrong("--alpha"))?);
        }
        let mut slowdowns = Vec::new();
        for text in &self.max_slowdown {
            slowdowns.push(parse_slowdown(text).map_err(wrong("--max-slowdown"))?);
        }
        let mut thresholds = Vec::new();
        for text in &self.threshold {
            thresholds.push(Threshold::parse(text).map_err(wrong("--threshold"))?);
        }
        let nothing_asked = self.policy.is_empty()
            && alphas.is_empty()
            && slowdowns.is_empty()
            && thresholds.is_empty();
        let is_asked = |kind, has_knobs| nothing_asked || self.policy.contains(&kind) || has_knobs;
        let mut all = Vec::new();
        for kind in PolicyKind::ALL {
            let base = PolicyConfig { kind, ..base.policy };
            let mut of_kind: Vec<PolicyConfig> = match kind {
                PolicyKind::Analytical if is_asked(kind, !alphas.is_empty()) => {
                    let alphas = if nothing_asked { ALPHAS.to_vec() } else { alphas.clone() };
                    alphas.into_iter().map(|alpha| PolicyConfig { alpha, ..base }).collect()
                }
                PolicyKind::Slowdown if is_asked(kind, !slowdowns.is_empty()) => {
                    let all = if nothing_asked { SLOWDOWNS.to_vec() } else { slowdowns.clone() };
                    let of = |max_slowdown| PolicyConfig { max_slowdown, ..base };
                    all.into_iter().map(of).collect()
                }
                PolicyKind::Waterfall if is_asked(kind, !thresholds.is_empty()) => {
                    let all = if nothing_asked { THRESHOLDS.to_vec() } else { thresholds.clone() };
                    all.into_iter().map(|threshold| PolicyConfig { threshold, ..base }).collect()
                }
                // One without a knob here, or without candidates: as it is.
                _ if nothing_asked && kind != PolicyKind::None => vec![base],
                _ => Vec::new(),
            };
            if of_kind.is_empty() && self.policy.contains(&kind) {
                of_kind.push(base);
            }
            all.extend(of_kind.into_iter().map(named));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    fn names(args: PolicyArgs) -> Vec<String> {
        let base = Config::from_preset(Preset::Auto);
        args.candidates(&base).unwrap().into_iter().map(|c| c.name).collect()
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
        let error = wrong.candidates(&Config::from_preset(Preset::Auto)).unwrap_err();
        assert!(error.to_string().starts_with("--alpha: "), "{error}");
    }
}
