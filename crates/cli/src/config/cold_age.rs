//! What the cold-age policy is asked for: the section `[cold_age]` and its options.

use serde::{Deserialize, Serialize};
use terrace_core::coldage::{
    Settings, MINUTE_S_DEFAULT, PERCENTILE_DEFAULT, PROMOTION_RATE_DEFAULT, WARM_UP_MINUTES_DEFAULT,
};

use super::{check_number, option, percent, Clash, ConfigError};

/// Knobs of the policy `cold-age` (docs/cold-age.md), also as traces have them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ColdAgeConfig {
    /// `P`: promotions allowed in a minute, as a share of the working set.
    pub promotion_rate: f64,
    /// `K`: percentile of the best thresholds of past minutes.
    pub percentile: f64,
    /// `S`: seconds without far memory at the start; `None`: ten minutes of [`Self::minute_s`].
    pub warm_up_s: Option<f64>,
    /// Seconds in a minute: less than 60 for experiments in compressed time.
    pub minute_s: f64,
    /// Seconds in a scan period; `None`: a window.
    pub scan_s: Option<f64>,
}

impl Default for ColdAgeConfig {
    fn default() -> Self {
        ColdAgeConfig {
            promotion_rate: PROMOTION_RATE_DEFAULT,
            percentile: PERCENTILE_DEFAULT,
            warm_up_s: None,
            minute_s: MINUTE_S_DEFAULT,
            scan_s: None,
        }
    }
}

impl ColdAgeConfig {
    /// The same for the policy, with windows of `window_s` seconds.
    pub fn settings(&self, window_s: f64) -> Settings {
        Settings {
            promotion_rate: self.promotion_rate,
            percentile: self.percentile,
            warm_up_s: self.warm_up_s.unwrap_or(WARM_UP_MINUTES_DEFAULT * self.minute_s),
            minute_s: self.minute_s,
            scan_s: self.scan_s.unwrap_or(window_s),
            window_s,
        }
    }

    /// That a minute or a scan period is shorter than a window, if one is.
    pub(super) fn clash(&self, window_s: f64) -> Option<Clash> {
        let all = [
            ("minute", self.minute_s, ("cold_age", "minute_s", "--cold-age-minute-s")),
            ("scan", self.scan_s.unwrap_or(window_s), ("cold_age", "scan_s", "--cold-age-scan-s")),
        ];
        let (what, seconds, of) = all.into_iter().find(|(_, seconds, _)| *seconds < window_s)?;
        let message = format!(
            "a {what} of {seconds} s is shorter than the window of {window_s} s; make the window \
             as short (--window {seconds}) or the {what} as long"
        );
        Some(Clash { message, of: vec![of, ("run", "window_s", "--window")] })
    }

    /// The section of a file that is read as this.
    pub(super) fn toml(&self) -> String {
        let mut text = format!(
            "[cold_age]\npromotion_rate = \"{:?}%\"\npercentile = {:?}\nminute_s = {:?}\n",
            percent(self.promotion_rate),
            self.percentile,
            self.minute_s
        );
        for (key, value) in [("warm_up_s", self.warm_up_s), ("scan_s", self.scan_s)] {
            if let Some(value) = value {
                text += &format!("{key} = {value:?}\n");
            }
        }
        text
    }
}

/// The options.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ColdAgeArgs {
    /// Promotions that the policy cold-age allows in a minute, in per cent of the working set, such
    /// as 0.2%
    #[arg(long, value_name = "PERCENT")]
    pub promotion_rate: Option<String>,
    /// Percentile of past minutes whose promotion rate the policy cold-age keeps
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub cold_age_percentile: Option<f64>,
    /// Seconds at the start in which the policy cold-age demotes nothing; ten minutes by default
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub cold_age_warm_up_s: Option<f64>,
    /// Seconds in a minute of the policy cold-age, for experiments in compressed time
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub cold_age_minute_s: Option<f64>,
    /// Seconds in a scan period, the unit of ages of the policy cold-age; a window by default
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub cold_age_scan_s: Option<f64>,
}

impl ColdAgeArgs {
    /// The first that is given, if any is.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            (self.promotion_rate.is_some(), "--promotion-rate"),
            (self.cold_age_percentile.is_some(), "--cold-age-percentile"),
            (self.cold_age_warm_up_s.is_some(), "--cold-age-warm-up-s"),
            (self.cold_age_minute_s.is_some(), "--cold-age-minute-s"),
            (self.cold_age_scan_s.is_some(), "--cold-age-scan-s"),
        ];
        all.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }

    /// The options that are given have the last word.
    pub(crate) fn put_over(&self, config: &mut ColdAgeConfig) -> Result<(), ConfigError> {
        if let Some(text) = &self.promotion_rate {
            config.promotion_rate = parse_rate(text).map_err(option("--promotion-rate"))?;
        }
        if let Some(k) = self.cold_age_percentile {
            config.percentile = check_percentile(k).map_err(option("--cold-age-percentile"))?;
        }
        if let Some(s) = self.cold_age_warm_up_s {
            config.warm_up_s = Some(check_warm_up_s(s).map_err(option("--cold-age-warm-up-s"))?);
        }
        if let Some(s) = self.cold_age_minute_s {
            config.minute_s = check_minute_s(s).map_err(option("--cold-age-minute-s"))?;
        }
        if let Some(s) = self.cold_age_scan_s {
            config.scan_s = Some(check_scan_s(s).map_err(option("--cold-age-scan-s"))?);
        }
        Ok(())
    }
}

/// Reads a promotion rate as files and the command line write it: `0.2%`, or `0.2` for the same.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: f64 = number.parse().map_err(|_| {
        format!("{text:?} is not a promotion rate; use a percentage a minute such as \"0.2%\"")
    })?;
    Ok(check_number(percent, 0.0, 100.0, "per cent of the working set a minute")? / 100.0)
}

pub(super) fn check_percentile(k: f64) -> Result<f64, String> {
    check_number(k, 0.0, 100.0, "per cent of the minutes")
}

pub(super) fn check_warm_up_s(seconds: f64) -> Result<f64, String> {
    check_number(seconds, 0.0, 1e6, "seconds without far memory")
}

pub(super) fn check_minute_s(seconds: f64) -> Result<f64, String> {
    check_number(seconds, 0.1, 3_600.0, "seconds in a minute")
}

pub(super) fn check_scan_s(seconds: f64) -> Result<f64, String> {
    check_number(seconds, 0.1, 86_400.0, "seconds in a scan period")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigArgs, PolicyKind};

    fn args(cold_age: ColdAgeArgs, window: f64) -> ConfigArgs {
        let policy = Some(PolicyKind::ColdAge);
        ConfigArgs { policy, window: Some(window), cold_age, ..ConfigArgs::default() }
    }

    #[test]
    fn options_are_read_and_the_warm_up_follows_the_minute() {
        let given = ColdAgeArgs {
            promotion_rate: Some("0.5%".into()),
            cold_age_percentile: Some(95.0),
            cold_age_minute_s: Some(2.0),
            cold_age_scan_s: Some(4.0),
            ..ColdAgeArgs::default()
        };
        let config = args(given, 1.0).resolve().unwrap();
        let settings = config.policy.cold_age.settings(config.run.window_s);
        assert_eq!((settings.promotion_rate, settings.percentile), (0.005, 95.0));
        assert_eq!((settings.minute_s, settings.warm_up_s), (2.0, 20.0));
        assert_eq!((settings.scan_s, settings.window_s), (4.0, 1.0));
        let whole = args(ColdAgeArgs::default(), 5.0).resolve().unwrap();
        assert_eq!(whole.policy.cold_age.settings(5.0), Settings::at_window(5.0));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let error = |given, window| args(given, window).resolve().unwrap_err().to_string();
        let rate = |text: &str| ColdAgeArgs {
            promotion_rate: Some(text.into()),
            ..ColdAgeArgs::default()
        };
        for wrong in ["few", "-1%", "101%", "NaN"] {
            assert!(error(rate(wrong), 5.0).starts_with("--promotion-rate: "));
        }
        let minute = ColdAgeArgs { cold_age_minute_s: Some(0.5), ..ColdAgeArgs::default() };
        let text = error(minute, 1.0);
        assert!(text.starts_with("--cold-age-minute-s: a minute of 0.5 s is shorter"), "{text}");
        let k = ColdAgeArgs { cold_age_percentile: Some(101.0), ..ColdAgeArgs::default() };
        assert!(error(k, 1.0).starts_with("--cold-age-percentile: 101 is out of"));
    }

    #[test]
    fn two_tier_needs_its_tier() {
        let args = |two_tier| ConfigArgs {
            policy: Some(PolicyKind::TwoTier),
            preset: Some(crate::preset::Preset::Tierscape),
            two_tier: Some(two_tier),
            ..ConfigArgs::default()
        };
        assert_eq!(args(5).resolve().unwrap().policy.two_tier, 5);
        let error = |n| args(n).resolve().unwrap_err().to_string();
        assert_eq!(error(6), "--two-tier: there is no tier 6; use 1 to 5");
        assert!(error(0).starts_with("--two-tier: 0 is out of range"));
    }

    #[test]
    fn every_rate_is_read_as_it_is_written() {
        for rate in [0.002, 0.0005, 0.0123, 1.0, 0.0] {
            let config = ColdAgeConfig { promotion_rate: rate, ..ColdAgeConfig::default() };
            let text = config.toml();
            let quoted = text.split('"').nth(1).unwrap();
            assert_eq!(parse_rate(quoted).unwrap(), rate, "{text}");
        }
    }
}
