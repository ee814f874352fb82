//! The knobs of the policy in force as words: as they are given on the command line, so that what
//! is read can be typed. JSON has shares, and the options take per cent.

use serde_json::Value;

use crate::config::{self, Config, PolicyKind};

/// A share as options take it.
fn percent(share: f64) -> String {
    format!("{}%", config::percent(share))
}

/// The amount of money in force, as `--budget-money` takes it; `None` where the policy has none.
pub(crate) fn budget_money(config: &Config) -> Option<String> {
    let is_in_force = config.policy.kind == PolicyKind::Analytical;
    config.policy.money.filter(|_| is_in_force).map(config::money_text)
}

/// The knobs among the fields of docs/timeline.md or of an explanation's policy, each after a
/// comma; empty if there are none.
pub(crate) fn words(fields: &Value) -> String {
    let mut out = String::new();
    let mut knob = |option: &str, value: String| out += &format!(", --{option} {value}");
    for (key, option) in [("alpha", "alpha"), ("two_tier", "two-tier")] {
        if let Some(number) = fields[key].as_f64() {
            knob(option, number.to_string());
        }
    }
    for (key, option) in [("budget_money", "budget-money"), ("threshold", "threshold")] {
        if let Some(text) = fields[key].as_str() {
            knob(option, text.into());
        }
    }
    if let Some(share) = fields["max_slowdown"].as_f64() {
        knob("max-slowdown", percent(share));
    }
    let rate = [&fields["promotion_rate"], &fields["cold_age"]["promotion_rate_allowed"]];
    if let Some(share) = rate.into_iter().find_map(Value::as_f64) {
        knob("promotion-rate", percent(share));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{parse_money, parse_slowdown};
    use crate::preset::Preset;

    #[test]
    fn knobs_are_shown_as_they_are_given() {
        assert_eq!(words(&json!({ "max_slowdown": 0.05 })), ", --max-slowdown 5%");
        assert_eq!(words(&json!({ "max_slowdown": 0.07 })), ", --max-slowdown 7%");
        assert_eq!(words(&json!({ "alpha": 0.5, "threshold": null })), ", --alpha 0.5");
        assert_eq!(
            words(&json!({ "threshold": "45%", "two_tier": 2 })),
            ", --two-tier 2, --threshold 45%"
        );
        assert_eq!(
            words(&json!({ "cold_age": { "promotion_rate_allowed": 0.002 } })),
            ", --promotion-rate 0.2%"
        );
        assert_eq!(words(&json!({ "promotion_rate": 0.0007 })), ", --promotion-rate 0.07%");
        assert_eq!(words(&json!({ "budget_money": "60%" })), ", --budget-money 60%");
        assert_eq!(words(&json!({})), "");
        for share in [0.0005, 0.05, 0.07, 0.29, 10.0] {
            assert_eq!(parse_slowdown(&percent(share)), Ok(share));
        }
    }

    #[test]
    fn money_is_in_force_with_the_policy_that_has_it() {
        let mut config = Config::from_preset(Preset::Auto);
        assert_eq!(budget_money(&config), None);
        for text in ["60%", "12.5"] {
            config.policy.money = Some(parse_money(text).unwrap());
            config.policy.kind = PolicyKind::Analytical;
            assert_eq!(budget_money(&config).as_deref(), Some(text));
        }
        config.policy.kind = PolicyKind::Slowdown;
        assert_eq!(budget_money(&config), None);
    }
}
