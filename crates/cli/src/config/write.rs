//! Media and tiers, or all of a configuration, as a file has them: the inverse of
//! [`super::file::parse`].

use std::fmt::Write as _;

use terrace_core::tier::{Medium, TierSpec};

use super::{file, Config, ConfigError};
use crate::media;
use crate::preset::Preset;

const PRESET: &str = "# preset: ";

/// All of a configuration, for a planner that continues another's work ([`read_whole`]).
pub fn whole(config: &Config) -> String {
    let (policy, run) = (&config.policy, &config.run);
    let slowdown = super::percent(policy.max_slowdown);
    let threshold = match policy.threshold {
        super::Threshold::Hotness(hotness) => format!("{hotness:?}"),
        named => format!("{:?}", named.to_string()),
    };
    let knob = match policy.money {
        Some(money) => format!("budget_money = {:?}", super::money_text(money)),
        None => format!("alpha = {:?}\nmax_slowdown = \"{:?}%\"", policy.alpha, slowdown),
    };
    format!(
        "{PRESET}{}
{}[policy]
kind = {:?}
{knob}
threshold = {threshold}
\
         usd_per_core_month = {:?}
two_tier = {}

{}
\
         [run]
window_s = {:?}
move_threads = {}
\
         move_mib_s = {}\nsamples_per_region = {}\ncutoff_bytes = {}\ncooling_windows = {}\n",
        config.preset,
        toml(config.dram(), &config.tiers),
        policy.kind.name(),
        policy.usd_per_core_month,
        policy.two_tier,
        policy.cold_age.toml(),
        run.window_s,
        run.move_threads,
        run.move_mib_s,
        run.samples_per_region,
        run.cutoff_bytes,
        run.cooling_windows,
    )
}

/// Reads what [`whole`] wrote; `name` stands for the file in complaints. The program has its media
/// open, so that they need not be found where they were.
pub fn read_whole(name: &str, text: &str) -> Result<Config, ConfigError> {
    let mut config = file::parse_opened(name, text, Preset::Auto)?;
    if let Some(preset) = text.lines().next().and_then(|l| l.strip_prefix(PRESET)) {
        preset.clone_into(&mut config.preset);
    }
    Ok(config)
}

/// `[[medium]]` and `[[tier]]` sections that are read as these tiers, on their media and `dram`.
pub fn toml(dram: &Medium, tiers: &[TierSpec]) -> String {
    let mut media = vec![dram];
    for medium in tiers.iter().map(|t| &t.medium) {
        if !media.iter().any(|m| m.name == medium.name) {
            media.push(medium);
        }
    }
    let mut text = String::new();
    for m in media {
        text += &media::toml(m);
        text.push('\n');
    }
    for t in tiers {
        let _ = write!(
            text,
            "[[tier]]\nname = {:?}\ncodec = {:?}\nlevel = {}\npool = {:?}\nmedium = {:?}\n",
            t.name,
            t.codec.name(),
            t.level,
            t.pool.name(),
            t.medium.name
        );
        if t.block_kib > 0 {
            let _ = writeln!(text, "block_kib = {}", t.block_kib);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::{PolicyKind, Threshold};
    use crate::preset;
    use terrace_core::plan::Money;
    use terrace_core::tier::{Codec, Pool, BLOCK_KIB};

    #[test]
    fn a_whole_configuration_is_read_back() {
        for preset in [Preset::Auto, Preset::Tierscape] {
            let mut config = Config::from_preset(preset);
            for threshold in [Threshold::Moderate, Threshold::Share(0.3), Threshold::Hotness(12.0)]
            {
                config.policy.threshold = threshold;
                config.policy.kind = PolicyKind::Waterfall;
                config.policy.alpha = 0.125;
                config.policy.two_tier = 2;
                config.policy.cold_age.promotion_rate = 0.0075;
                config.policy.cold_age.scan_s = Some(0.4);
                config.run.window_s = 0.2;
                config.run.samples_per_region = 7;
                let text = whole(&config);
                let read = read_whole("t", &text).unwrap();
                assert_eq!(read.tiers, config.tiers, "{text}");
                assert_eq!(read.policy, config.policy, "{text}");
                assert_eq!(read.run, config.run, "{text}");
                assert_eq!((&read.preset, read.dram()), (&config.preset, config.dram()));
            }
        }
    }

    #[test]
    fn the_budget_of_a_planner_is_its_successors() {
        let mut config = Config::from_preset(Preset::Tierscape);
        for money in [Money::Usd(12.5), Money::Share(0.75)] {
            config.policy.money = Some(money);
            config.policy.kind = PolicyKind::Analytical;
            assert_eq!(read_whole("t", &whole(&config)).unwrap().policy, config.policy);
        }
        config.policy.money = None;
        config.policy.kind = PolicyKind::Slowdown;
        config.policy.max_slowdown = 0.125;
        assert_eq!(read_whole("t", &whole(&config)).unwrap().policy, config.policy);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dram = preset::dram(0.7);
        for media in [preset::dram(0.7), preset::slow(0.7)] {
            let tiers: Vec<TierSpec> = Codec::ALL
                .into_iter()
                .flat_map(|c| Pool::ALL.map(|p| TierSpec::new(p, c, media.clone())))
                .take(12)
                .chain(BLOCK_KIB.map(|kib| TierSpec::with_blocks(Pool::Zbud, kib, media.clone())))
                .collect();
            let text = toml(&dram, &tiers);
            let config = file::parse("t", &text, Preset::Auto).unwrap();
            assert_eq!(config.tiers, tiers, "{text}");
            assert_eq!(config.dram(), &dram);
        }
    }
}
