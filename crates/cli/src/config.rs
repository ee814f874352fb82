//! What `terrace run` is asked to do: media, tiers, policy and limits.
//!
//! Defaults come from a preset, a TOML file ([`mod@file`]) replaces them, the command line
//! ([`ConfigArgs`]) has the last word. Values are checked by the functions here whichever way they
//! came; a value from a file is reported as `FILE:LINE: KEY: what is wrong; how to mend it`, one
//! from the command line with its option in the place of file and key.

use std::path::{Path, PathBuf};

use terrace_core::cost::USD_PER_CORE_MONTH;
use terrace_core::looks::Watching;
use terrace_core::plan::limits::Limit;
use terrace_core::plan::{Money, SLOWDOWN_DEFAULT};
use terrace_core::tier::{Medium, MediumKind, TierId, TierSpec, MAX_TIERS};

use crate::preset::{self, Preset};
use cold_age::ColdAgeArgs;
use saved::Saved;

pub mod cold_age;
pub mod file;
pub mod saved;
pub mod write;

pub use cold_age::ColdAgeConfig;
pub use file::ConfigError;

/// Length of a profile window when nothing else is asked for. TierScape uses 120 s for programs
/// that run for hours; a fault-sampling tracker sees enough of a region in a few seconds.
pub const WINDOW_S_DEFAULT: f64 = 5.0;

/// Compressed size from which a page counts as incompressible: zswap and software-defined far
/// memory both use 2,990 of 4,096 bytes (73 %).
pub const CUTOFF_BYTES_DEFAULT: u32 = 2_990;

/// Length of a window under torture: what is not touched for so long goes down.
pub const TORTURE_WINDOW_S: f64 = 0.1;

/// Everything one run needs to know.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Where it came from, for reports: a preset's name, or `file` when a file lists the tiers.
    pub preset: String,
    /// The media; exactly one of them is of kind `dram`.
    pub media: Vec<Medium>,
    /// Compressed tiers in order: `tiers[0]` is `TierId(1)`.
    pub tiers: Vec<TierSpec>,
    /// Who decides the placement.
    pub policy: PolicyConfig,
    /// Windows, limits and sampling.
    pub run: RunConfig,
    /// What to say about the tiers of the preset `auto`: the file that they are from, or why a
    /// saved one is not used. `None` for the built-in ones.
    pub tiers_note: Option<String>,
}

/// How placement is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum PolicyKind {
    /// Least slowdown within a TCO budget (TierScape, section 5.2).
    Analytical,
    /// Least TCO within a slowdown that is accepted (docs/slowdown.md).
    Slowdown,
    /// Everything below the threshold moves one tier down each window (section 5.1).
    Waterfall,
    /// Down what is so old that hardly any of it comes back (docs/cold-age.md).
    ColdAge,
    /// Everything below the threshold moves to one tier (section 7.1, the baseline).
    TwoTier,
    /// Nothing is ever demoted; the runtime is only loaded.
    None,
    /// The same threshold, with the kernel's zswap as the only tier; for `terrace bench paper`,
    /// which sets zswap up. Not one of [`PolicyKind::ALL`].
    #[value(hide = true)]
    KernelTwoTier,
}

impl PolicyKind {
    /// What it wants to know of pages at home.
    pub fn watching(self) -> Watching {
        match self {
            PolicyKind::ColdAge => Watching::Ages,
            PolicyKind::Analytical
            | PolicyKind::Slowdown
            | PolicyKind::Waterfall
            | PolicyKind::TwoTier
            | PolicyKind::None
            | PolicyKind::KernelTwoTier => Watching::Use,
        }
    }

    /// All policies, as configuration files name them.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Analytical,
        PolicyKind::Slowdown,
        PolicyKind::Waterfall,
        PolicyKind::ColdAge,
        PolicyKind::TwoTier,
        PolicyKind::None,
    ];

    /// Name in configuration files and reports.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Analytical => "analytical",
            PolicyKind::Slowdown => "slowdown",
            PolicyKind::Waterfall => "waterfall",
            PolicyKind::ColdAge => "cold-age",
            PolicyKind::TwoTier => "two-tier",
            PolicyKind::None => "none",
            PolicyKind::KernelTwoTier => "kernel-two-tier",
        }
    }
}

/// Policy and all of its knobs, so that the command line can switch the policy of a file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PolicyConfig {
    /// Which policy.
    pub kind: PolicyKind,
    /// Knob of `analytical`: 1 keeps everything in DRAM, 0 saves all that can be saved.
    pub alpha: f64,
    /// In the place of `analytical`'s knob: how much an application's memory may cost.
    pub money: Option<Money>,
    /// Knob of `slowdown`: how much slower the program may become, as a share.
    pub max_slowdown: f64,
    /// Knob of `waterfall` and `two-tier`.
    pub threshold: Threshold,
    /// The compressed tier of `two-tier`, from 1.
    pub two_tier: u8,
    /// Knobs of `cold-age`.
    pub cold_age: ColdAgeConfig,
    /// Price of processor time in US dollars per core and month; `analytical` saves no memory that
    /// costs more in faults. 0: processor time is free.
    pub usd_per_core_month: f64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        PolicyConfig {
            // The one that asks what an operator can answer.
            kind: PolicyKind::Slowdown,
            // TierScape's middle setting, 6T-AM-0.5.
            alpha: 0.5,
            money: None,
            max_slowdown: SLOWDOWN_DEFAULT,
            threshold: Threshold::Moderate,
            two_tier: 1,
            cold_age: ColdAgeConfig::default(),
            usd_per_core_month: USD_PER_CORE_MONTH,
        }
    }
}

/// Below which hotness a region is demoted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// About the coldest 15-20 % of the data.
    Conservative,
    /// About the coldest 40-50 %.
    Moderate,
    /// About the coldest 70-80 %.
    Aggressive,
    /// The coldest share of the data, 0..=1; `"45%"` in a file.
    Share(f64),
    /// A hotness: distinct pages of a region touched in a window.
    Hotness(f64),
}

impl Threshold {
    /// The share of the data to demote, if the threshold is one. The named ones lie in the middle
    /// of the bands that TierScape gives (section 7.1).
    pub fn share(self) -> Option<f64> {
        match self {
            Threshold::Conservative => Some(0.175),
            Threshold::Moderate => Some(0.45),
            Threshold::Aggressive => Some(0.75),
            Threshold::Share(share) => Some(share),
            Threshold::Hotness(_) => None,
        }
    }

    /// Reads a threshold as files and the command line write it.
    pub fn parse(text: &str) -> Result<Threshold, String> {
        const FORMS: &str = "use conservative, moderate, aggressive, a share such as \"45%\" or a \
                             hotness such as 12";
        match text {
            "conservative" => return Ok(Threshold::Conservative),
            "moderate" => return Ok(Threshold::Moderate),
            "aggressive" => return Ok(Threshold::Aggressive),
            _ => {}
        }
        if let Some(percent) = text.strip_suffix('%') {
            let share: f64 =
                percent.trim().parse().map_err(|_| format!("{text:?} is not a share; {FORMS}"))?;
            if !(0.0..=100.0).contains(&share) {
                return Err(format!("{text:?} is not a share; use 0% to 100%"));
            }
            return Ok(Threshold::Share(share / 100.0));
        }
        let hotness: f64 =
            text.parse().map_err(|_| format!("{text:?} is not a threshold; {FORMS}"))?;
        Threshold::hotness(hotness)
    }

    /// A threshold given as a number.
    pub fn hotness(hotness: f64) -> Result<Threshold, String> {
        check_number(hotness, 0.0, 512.0, "pages of a region touched in a window")?;
        Ok(Threshold::Hotness(hotness))
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Threshold::Conservative => f.write_str("conservative"),
            Threshold::Moderate => f.write_str("moderate"),
            Threshold::Aggressive => f.write_str("aggressive"),
            Threshold::Share(share) => write!(f, "{}%", percent(*share)),
            Threshold::Hotness(hotness) => write!(f, "{hotness}"),
        }
    }
}

/// Windows, limits and sampling.
#[derive(Clone, PartialEq, Debug)]
pub struct RunConfig {
    /// Length of a profile window, in seconds.
    pub window_s: f64,
    /// Threads of the runtime that compress and move pages.
    pub move_threads: u32,
    /// Most that movement may read and write per second, in MiB of application memory; 0 for no
    /// limit.
    pub move_mib_s: u64,
    /// Pages of a region in DRAM that the tracker watches in one window; 0 to 512.
    pub samples_per_region: u32,
    /// A page that compresses to more bytes than this stays in DRAM. A tier on a cheaper medium
    /// takes longer ones ([`TierSpec::cutoff_bytes`]).
    pub cutoff_bytes: u32,
    /// Windows for which a page that faulted back is left alone.
    pub cooling_windows: u32,
    /// Not 0: a torture run ([`Config::torture`]), which draws from this.
    pub torture_seed: u64,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            window_s: WINDOW_S_DEFAULT,
            // One thread compresses some 400 MiB/s with lz4; more take CPUs from the application.
            move_threads: 1,
            move_mib_s: 512,
            // 4 to 8 samples are what the estimate in terrace_core::hotness is made for.
            samples_per_region: 4,
            cutoff_bytes: CUTOFF_BYTES_DEFAULT,
            // Measured on the demo: with 2, half of all faults are pages that had just come back.
            cooling_windows: 3,
            torture_seed: 0,
        }
    }
}

impl Config {
    /// A preset with default policy and limits.
    pub fn from_preset(preset: Preset) -> Config {
        Config {
            preset: preset.name().into(),
            media: preset.media(),
            tiers: preset.tiers(),
            policy: PolicyConfig::default(),
            run: RunConfig::default(),
            tiers_note: None,
        }
    }

    /// Reads a file; tiers and media that it does not name come from the preset `auto`.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::load_over(path, Preset::Auto)
    }

    /// Reads a file; tiers and media that it does not name come from `preset`.
    pub fn load_over(path: &Path, preset: Preset) -> Result<Config, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| ConfigError {
            file: name.clone(),
            line: 0,
            key: String::new(),
            message: format!("cannot be read: {e}; give --config a readable TOML file"),
        })?;
        file::parse(&name, &text, preset)
    }

    /// Makes it a torture run: the shortest windows, no limit to movement, and everything goes
    /// somewhere at random. The tiers stay what they are. A `seed` of 0 is taken for 1.
    pub fn torture(&mut self, seed: u64) {
        let run = &mut self.run;
        run.torture_seed = seed.max(1);
        run.window_s = TORTURE_WINDOW_S;
        run.cooling_windows = 1;
        run.move_mib_s = 0;
        // Movers in each other's way.
        run.move_threads = run.move_threads.max(2);
    }

    /// DRAM: the medium of tier 0.
    pub fn dram(&self) -> &Medium {
        self.media
            .iter()
            .find(|m| m.kind == MediumKind::Dram)
            .expect("file::parse and the presets always put a dram medium in")
    }

    /// What the media hold at most, where that is limited.
    pub fn limits(&self) -> Vec<Limit> {
        let limited = self.media.iter().filter(|medium| medium.place.capacity_bytes > 0);
        let on = |medium: &Medium| {
            let tiers = self.tiers.iter().enumerate();
            let on = tiers.filter(|(_, tier)| tier.medium.name == medium.name);
            on.map(|(index, _)| TierId(index as u8 + 1)).collect::<Vec<_>>()
        };
        let limits = limited.map(|medium| (on(medium), medium.place.capacity_bytes as f64));
        limits.filter(|(on, _)| !on.is_empty()).map(|(on, most)| Limit::new(on, most)).collect()
    }

    /// What only the whole can be wrong in.
    fn clash(&self) -> Option<Clash> {
        let policy = &self.policy;
        match policy.kind {
            PolicyKind::TwoTier if usize::from(policy.two_tier) > self.tiers.len() => {
                let (number, tiers) = (policy.two_tier, self.tiers.len());
                let message = format!("there is no tier {number}; use 1 to {tiers}");
                Some(Clash { message, of: vec![("policy", "two_tier", "--two-tier")] })
            }
            PolicyKind::ColdAge => policy.cold_age.clash(self.run.window_s),
            _ => None,
        }
    }

    /// Whether any tier lies on an emulated medium, which every report must say.
    pub fn is_emulated(&self) -> bool {
        self.tiers.iter().any(|t| t.medium.kind == MediumKind::Emulated)
    }
}

/// Values that cannot be had together.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Clash {
    /// What is wrong and how to mend it.
    message: String,
    /// What it may come from: section and key of a file, and option. The first that was given is to
    /// blame, options before a file.
    of: Vec<(&'static str, &'static str, &'static str)>,
}

/// Options that `run`, `tiers list` and `demo` share. An option that is given overrides the file.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// TOML file with media, tiers, policy and limits (docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Tier set to use instead of the file's [default: auto]
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Who decides the placement [default: slowdown]
    #[arg(long, value_enum)]
    pub policy: Option<PolicyKind>,
    /// Knob of the analytical policy, which it chooses: 1 keeps everything in DRAM, 0 saves all
    /// that can be saved [default: 0.5]
    #[arg(long, allow_negative_numbers = true)]
    pub alpha: Option<f64>,
    /// Most that the program's memory may cost, in US dollars per month or as a share such as 60%
    /// of what it costs in DRAM; chooses the analytical policy
    #[arg(long, value_name = "USD", conflicts_with_all = ["alpha", "max_slowdown"],
          allow_hyphen_values = true)]
    pub budget_money: Option<String>,
    /// Slowdown of the program that is accepted, such as 3%; 5% unless said otherwise. Chooses the
    /// slowdown policy, which is the default
    #[arg(long, value_name = "PERCENT", conflicts_with = "alpha")]
    pub max_slowdown: Option<String>,
    /// Threshold of the policies waterfall and two-tier: conservative, moderate, aggressive (the
    /// coldest 17.5, 45, 75 %), another share such as "30%", or a hotness (pages of a region that
    /// are touched in a window, 0 to 512) [default: moderate]
    #[arg(long)]
    pub threshold: Option<String>,
    /// Compressed tier of the policy two-tier, by its number from 1
    #[arg(long, value_name = "N")]
    pub two_tier: Option<u32>,
    /// Knobs of the policy cold-age
    #[command(flatten)]
    pub cold_age: ColdAgeArgs,
    /// Price of processor time in US dollars per core and month; 0 if spare cores cost nothing
    /// [default: 0.02]
    #[arg(long, value_name = "USD", allow_negative_numbers = true)]
    pub usd_per_core_month: Option<f64>,
    /// Length of a profile window in seconds [default: 5]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub window: Option<f64>,
    /// Threads that compress and move pages [default: 1]
    #[arg(long, value_name = "N")]
    pub move_threads: Option<u32>,
    /// Most memory taken out of the program per second, in MiB; 0 for no limit [default: 512]
    #[arg(long, value_name = "MIB")]
    pub move_mib_s: Option<u64>,
}

impl ConfigArgs {
    /// Preset, then file, then these options. Where that leaves the tiers to the preset `auto`,
    /// they are those that were saved for this machine ([`mod@saved`]), if any were.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        self.resolve_with(saved::load)
    }

    fn resolve_with(&self, saved: impl FnOnce() -> Saved) -> Result<Config, ConfigError> {
        let preset = self.preset.unwrap_or_default();
        let mut config = match &self.config {
            Some(path) => Config::load_over(path, preset)?,
            None => Config::from_preset(preset),
        };
        if let Some(preset) = self.preset {
            preset.name().clone_into(&mut config.preset);
            config.tiers = preset.tiers_on(&config.media);
            for medium in config.tiers.iter().map(|t| &t.medium) {
                if !config.media.iter().any(|m| m.name == medium.name) {
                    config.media.push(medium.clone());
                }
            }
        }
        if config.preset == Preset::Auto.name() {
            match saved() {
                Saved::None => {}
                Saved::Tiers(tiers) => tiers.put_into(&mut config),
                Saved::Ignored(why) => config.tiers_note = Some(format!("auto: {why}")),
            }
        }
        self.put_over(config)
    }

    /// Like [`Self::resolve`], with `base` in the place of the preset where the options name
    /// neither a preset nor a file.
    pub fn resolve_over(&self, base: Config) -> Result<Config, ConfigError> {
        if self.names_tiers() {
            self.resolve()
        } else {
            self.put_over(base)
        }
    }

    /// Whether the options say which tiers there are.
    pub fn names_tiers(&self) -> bool {
        self.config.is_some() || self.preset.is_some()
    }

    /// The options that are left have the last word.
    fn put_over(&self, mut config: Config) -> Result<Config, ConfigError> {
        if let Some(text) = &self.max_slowdown {
            config.policy.max_slowdown = parse_slowdown(text).map_err(option("--max-slowdown"))?;
            config.policy.kind = PolicyKind::Slowdown;
        }
        if let Some(text) = &self.budget_money {
            let money = parse_money(text).map_err(option("--budget-money"))?;
            config.policy.money = Some(money);
            config.policy.kind = PolicyKind::Analytical;
        }
        if self.alpha.is_some() {
            config.policy.kind = PolicyKind::Analytical;
        }
        if let Some(kind) = self.policy {
            config.policy.kind = kind;
        }
        self.contradicts(config.policy.kind)?;
        if let Some(alpha) = self.alpha {
            config.policy.alpha = check_alpha(alpha).map_err(option("--alpha"))?;
            // What a file says of money gives way, as any other value of it does.
            config.policy.money = None;
        }
        if let Some(threshold) = &self.threshold {
            config.policy.threshold = Threshold::parse(threshold).map_err(option("--threshold"))?;
        }
        if let Some(number) = self.two_tier {
            config.policy.two_tier = check_tier_number(number).map_err(option("--two-tier"))?;
        }
        self.cold_age.put_over(&mut config.policy.cold_age)?;
        if let Some(usd) = self.usd_per_core_month {
            config.policy.usd_per_core_month =
                check_core_price(usd).map_err(option("--usd-per-core-month"))?;
        }
        if let Some(window_s) = self.window {
            config.run.window_s = check_window_s(window_s).map_err(option("--window"))?;
        }
        if let Some(n) = self.move_threads {
            config.run.move_threads = check_threads(n).map_err(option("--move-threads"))?;
        }
        if let Some(mib_s) = self.move_mib_s {
            config.run.move_mib_s = mib_s;
        }
        match config.clash() {
            Some(clash) => Err(self.blame(clash)),
            None => Ok(config),
        }
    }
}

impl ConfigArgs {
    /// Refuses an option that the policy in force has no use for. (A file may have knobs of several
    /// policies.) `none` refuses none: it switches off what would be chosen.
    fn contradicts(&self, kind: PolicyKind) -> Result<(), ConfigError> {
        use PolicyKind::{Analytical, ColdAge, KernelTwoTier, Slowdown, TwoTier, Waterfall};
        type Knob = (Option<&'static str>, &'static [PolicyKind]);
        let given = |is_given: bool, name| is_given.then_some(name);
        let choosing: [Knob; 3] = [
            (given(self.budget_money.is_some(), "--budget-money"), &[Analytical]),
            (given(self.alpha.is_some(), "--alpha"), &[Analytical]),
            (given(self.max_slowdown.is_some(), "--max-slowdown"), &[Slowdown]),
        ];
        let others: [Knob; 3] = [
            (given(self.threshold.is_some(), "--threshold"), &[Waterfall, TwoTier, KernelTwoTier]),
            (given(self.two_tier.is_some(), "--two-tier"), &[TwoTier]),
            (self.cold_age.given(), &[ColdAge]),
        ];
        let useless = |(given, of): Knob| {
            given.filter(|_| kind != PolicyKind::None && !of.contains(&kind)).map(|knob| (knob, of))
        };
        let Some((knob, of)) = choosing.into_iter().chain(others).find_map(useless) else {
            return Ok(());
        };
        let of = PolicyKind::ALL.into_iter().filter(|k| of.contains(k)).map(PolicyKind::name);
        let of: Vec<&str> = of.collect();
        let policies = if of.len() > 1 { "policies" } else { "policy" };
        let add = format!("--policy {}", of[0]);
        let chosen = choosing.into_iter().find_map(|(given, _)| given);
        let (in_force, mend) = match (self.policy, chosen) {
            (Some(_), _) => ("--policy says".into(), format!("say {add} instead")),
            (None, Some(by)) => (format!("{by} chooses"), format!("say {add} instead of {by}")),
            (None, None) => ("the one in force is".into(), format!("add {add}")),
        };
        Err(option(knob)(format!(
            "it is a knob of the {policies} {}, and {in_force} {}; {mend}, or leave {knob} out",
            of.join(" and "),
            kind.name()
        )))
    }

    /// Who gave what clashes.
    fn blame(&self, clash: Clash) -> ConfigError {
        let is_given = |name| match name {
            "--two-tier" => self.two_tier.is_some(),
            "--cold-age-minute-s" => self.cold_age.cold_age_minute_s.is_some(),
            "--cold-age-scan-s" => self.cold_age.cold_age_scan_s.is_some(),
            "--window" => self.window.is_some(),
            _ => false,
        };
        let names = || clash.of.iter().map(|of| of.2);
        let in_file = || {
            let path = self.config.as_ref()?;
            let text = std::fs::read_to_string(path).ok()?;
            file::blame(&path.display().to_string(), &text, &clash)
        };
        match names().find(|name| is_given(name)) {
            Some(name) => option(name)(clash.message),
            None => in_file().unwrap_or_else(|| {
                option(names().next().unwrap_or_default())(clash.message.clone())
            }),
        }
    }
}

/// An error in the value of a command line option.
pub(crate) fn option(name: &'static str) -> impl Fn(String) -> ConfigError {
    move |message| ConfigError { file: String::new(), line: 0, key: name.into(), message }
}

/// Threads that move pages: as many as the runtime has places for.
pub(crate) const MOVE_THREADS_MAX: u32 = 8;

pub(crate) fn check_number(value: f64, lo: f64, hi: f64, what: &str) -> Result<f64, String> {
    if (lo..=hi).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{value} is out of range; use {lo} to {hi} ({what})"))
    }
}

pub(crate) fn check_alpha(alpha: f64) -> Result<f64, String> {
    check_number(alpha, 0.0, 1.0, "0 saves all that can be saved, 1 keeps everything in DRAM")
}

/// Reads a slowdown as files and the command line write it: `5%`, or `5` for the same.
pub(crate) fn parse_slowdown(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a slowdown; use a percentage such as \"5%\""))?;
    Ok(check_number(percent, 0.0, 1_000.0, "per cent slower")? / 100.0)
}

/// Reads an amount of money as files and the command line write it: `12.50` US dollars per month,
/// or `60%` of what the application costs in DRAM.
pub(crate) fn parse_money(text: &str) -> Result<Money, String> {
    let share = text.strip_suffix('%');
    let number: f64 = share.unwrap_or(text).trim().parse().map_err(|_| {
        format!(
            "{text:?} is not an amount of money; use US dollars per month such as 12.50, or a \
             share of what it costs in DRAM such as \"60%\""
        )
    })?;
    match share {
        Some(_) => Ok(Money::Share(check_number(number, 0.0, 100.0, "per cent of DRAM")? / 100.0)),
        None => Ok(Money::Usd(check_number(number, 0.0, 1e9, "US dollars per month")?)),
    }
}

/// An amount of money as [`parse_money`] reads it.
pub(crate) fn money_text(money: Money) -> String {
    match money {
        Money::Usd(usd) => usd.to_string(),
        Money::Share(share) => format!("{}%", percent(share)),
    }
}

/// A share in per cent, past the rounding of the product, so that what is read back is what was
/// written.
pub(crate) fn percent(share: f64) -> f64 {
    (share * 100.0 * 1e10).round() / 1e10
}

pub(crate) fn check_core_price(usd: f64) -> Result<f64, String> {
    check_number(usd, 0.0, 10_000.0, "US dollars per core and month")
}

pub(crate) fn check_tier_number(number: u32) -> Result<u8, String> {
    match u8::try_from(number) {
        Ok(n) if (1..=COMPRESSED_TIERS_MAX).contains(&usize::from(n)) => Ok(n),
        _ => Err(format!(
            "{number} is out of range; use 1 to {COMPRESSED_TIERS_MAX} (compressed tiers)"
        )),
    }
}

pub(crate) fn check_window_s(window_s: f64) -> Result<f64, String> {
    check_number(window_s, 0.1, 86_400.0, "seconds in a window")
}

pub(crate) fn check_threads(threads: u32) -> Result<u32, String> {
    if (1..=MOVE_THREADS_MAX).contains(&threads) {
        Ok(threads)
    } else {
        Err(format!("{threads} is out of range; use 1 to {MOVE_THREADS_MAX} (threads)"))
    }
}

/// Compressed tiers that fit beside DRAM.
pub(crate) const COMPRESSED_TIERS_MAX: usize = MAX_TIERS - 1;

/// The media of a configuration that names none of kind `dram`: its own, and DRAM at the default
/// price in front.
pub(crate) fn with_dram(mut media: Vec<Medium>) -> Vec<Medium> {
    if !media.iter().any(|m| m.kind == MediumKind::Dram) {
        media.insert(0, preset::dram(preset::DRAM_USD_PER_GIB_MONTH));
    }
    media
}

#[cfg(test)]
mod tests;
