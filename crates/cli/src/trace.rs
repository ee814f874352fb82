//! Traces: what an application did to its regions, window by window, as a Parquet file
//! (docs/sim.md).
//!
//! One row for each region and window. What is known of a process in a window stands in each row
//! of it, which costs next to nothing in a column. Tiers and the run are in the file's key-value
//! metadata, as JSON under [`META_KEY`].

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use terrace_core::cost::{TierCost, MOVE_NS_PER_PAGE};
use terrace_core::plan::Ratios;
use terrace_core::tier::{Codec, TierSpec, MAX_TIERS};

use crate::config::{self, ColdAgeConfig, Config, PolicyConfig, PolicyKind, Threshold};
use crate::machine::Machine;
use crate::sim::costs;

pub mod read;
pub mod record;
pub mod write;

/// Key of the metadata.
pub const META_KEY: &str = "terrace";
/// Version of the schema; one that is not known is refused.
pub const FORMAT: u32 = 1;

/// One region in one window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// The window, from 1.
    pub window: u32,
    /// Address of the region.
    pub region: u64,
    /// Pages that hold data at the end of the window.
    pub pages: u16,
    /// Those of them in DRAM.
    pub resident: u16,
    /// Pages in DRAM at the start of the window.
    pub resident_at_open: u16,
    /// Where it belongs: the tier of its last move, 0 for DRAM.
    pub tier: u8,
    /// Where the plan at the end of the window sends it, if anywhere.
    pub to: Option<u8>,
    /// Pages at home that were watched.
    pub samples: u8,
    /// Those that were touched.
    pub hits: u8,
    /// Pages that faulted back.
    pub faults: u16,
    /// Distinct pages touched: the planner's estimate, or the truth of a generated trace.
    pub touched: f32,
    /// What its stored pages take, at the ratio known of it or of its tier.
    pub stored_bytes: u32,
    /// Stored / original, tier by tier, where it is known of this region.
    pub ratios: Ratios,
}

/// One process in one window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ProcessWindow {
    /// When it ended, since the start of the trace.
    pub time_ms: u64,
    /// Time that its threads ran, all together; 0 where it was not measured.
    pub running_ns: u64,
    /// Time that they waited for pages.
    pub stalled_ns: u64,
    /// Processor time of Terrace beside that.
    pub cpu_ns: u64,
    /// Share of it that the application would have used.
    pub contention: f32,
    /// Pages that plans moved.
    pub moved_pages: u32,
    /// Pages that came home along with another one's fault.
    pub ahead_pages: u32,
    /// Faults from tiers that threads waited for; 0 in traces that do not say.
    pub served_faults: u32,
    /// What would be resident without Terrace.
    pub managed_bytes: u64,
    /// DRAM that Terrace takes, pools aside.
    pub overhead_bytes: u64,
    /// Bytes that the pools take, gaps and tables included; 0 in traces that do not say.
    pub pool_bytes: u64,
    /// Share of the money saved, as measured.
    pub tco_saved: f32,
    /// What the planner took each tier to cost when it planned, by the tier's index; none of DRAM,
    /// and in traces that do not say.
    pub known: [Option<KnownCost>; MAX_TIERS],
}

/// What a planner took a tier to cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct KnownCost {
    /// Mean latency of a fault, in nanoseconds.
    pub fault_ns: f32,
    /// Stored / original bytes.
    pub ratio: f32,
    /// Processor time of moving a page there, in nanoseconds.
    pub move_ns: f32,
}

/// What the planner took tiers to cost, as a trace has it.
pub fn known(costs: &[TierCost]) -> [Option<KnownCost>; MAX_TIERS] {
    let mut known = [None; MAX_TIERS];
    for (known, cost) in known.iter_mut().zip(costs).skip(1) {
        *known = Some(KnownCost {
            fault_ns: cost.fault_ns as f32,
            ratio: cost.ratio as f32,
            move_ns: cost.move_ns as f32,
        });
    }
    known
}

/// A tier and what it was measured to cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceTier {
    /// Its name; the first is DRAM.
    pub name: String,
    /// The codec; none for DRAM.
    pub codec: Option<String>,
    /// Its level.
    pub level: i32,
    /// The pool; none for DRAM.
    pub pool: Option<String>,
    /// KiB that are compressed together.
    pub block_kib: u8,
    /// The medium.
    pub medium: String,
    /// Price of the medium in US dollars per GiB and month.
    pub usd_per_gib_month: f64,
    /// Mean latency of a fault; 0 for DRAM.
    pub fault_ns: f64,
    /// Stored / original bytes.
    pub ratio: f64,
    /// Processor time of moving a page there as the planner had it, in nanoseconds; none in traces
    /// from before 2026-11-25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_ns: Option<f64>,
    /// Where these are from: `measured`, or `nominal`.
    pub known: String,
}

/// A process of the trace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Its id.
    pub pid: u32,
    /// Program and arguments, or the generator. Nothing of the environment.
    pub command: String,
}

/// The policy of a recorded run, with all knobs, also those of others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PolicyMeta {
    /// Its name.
    pub kind: String,
    /// Knob of `analytical`.
    pub alpha: f64,
    /// In the place of `alpha`, as `budget_money` of a file has it; none also in traces from before
    /// 2026-11-29, which do not say.
    #[serde(default)]
    pub budget_money: Option<String>,
    /// Knob of `slowdown`, a share.
    pub max_slowdown: f64,
    /// Knob of `waterfall` and `two-tier`.
    pub threshold: String,
    /// The tier of `two-tier`, from 1; none in traces from before 2026-11-29.
    #[serde(default)]
    pub two_tier: Option<u8>,
    /// Knobs of `cold-age`; none in traces from before 2026-11-29.
    #[serde(default)]
    pub cold_age: Option<ColdAgeConfig>,
    /// Price of processor time.
    pub usd_per_core_month: f64,
}

impl PolicyMeta {
    /// That of a run by this configuration.
    fn of(config: &Config) -> PolicyMeta {
        let policy = &config.policy;
        PolicyMeta {
            kind: match config.run.torture_seed {
                0 => policy.kind.name().into(),
                _ => "torture".into(),
            },
            alpha: policy.alpha,
            budget_money: policy.money.map(config::money_text),
            max_slowdown: policy.max_slowdown,
            threshold: policy.threshold.to_string(),
            two_tier: Some(policy.two_tier),
            cold_age: Some(policy.cold_age),
            usd_per_core_month: policy.usd_per_core_month,
        }
    }

    /// The policy, if it can be had here. Knobs that the trace does not say are the usual ones
    /// ([`Self::unknown`]).
    pub fn policy(&self) -> Option<PolicyConfig> {
        let usual = PolicyConfig::default();
        let money = self.budget_money.as_deref().map(config::parse_money);
        Some(PolicyConfig {
            kind: PolicyKind::from_str(&self.kind, false).ok()?,
            alpha: self.alpha,
            money: money.transpose().ok()?,
            max_slowdown: self.max_slowdown,
            threshold: Threshold::parse(&self.threshold).ok()?,
            two_tier: self.two_tier.unwrap_or(usual.two_tier),
            cold_age: self.cold_age.unwrap_or(usual.cold_age),
            usd_per_core_month: self.usd_per_core_month,
        })
    }

    /// A knob that this policy goes by and the trace does not say, as a file has it.
    pub fn unknown(&self) -> Option<&'static str> {
        let is_old = self.two_tier.is_none() || self.cold_age.is_none();
        match PolicyKind::from_str(&self.kind, false).ok()? {
            // What had a budget of money has its alpha all the same.
            PolicyKind::Analytical if is_old => Some("budget_money"),
            PolicyKind::TwoTier if self.two_tier.is_none() => Some("two_tier"),
            PolicyKind::ColdAge if self.cold_age.is_none() => Some("cold_age"),
            _ => None,
        }
    }
}

/// What is known of a whole trace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of `terrace`.
    pub version: String,
    /// `recorded`, `generated` or `merged`.
    pub source: String,
    /// Whether `touched` is the truth rather than an estimate.
    pub is_exact: bool,
    /// Length of a window.
    pub window_s: f64,
    /// Policy of the run.
    pub policy: PolicyMeta,
    /// DRAM and the tiers, with the costs known at the end.
    pub tiers: Vec<TraceTier>,
    /// Windows that a page which came back stays home.
    pub cooling_windows: u32,
    /// Pages watched of a region in a window.
    pub samples_per_region: u32,
    /// Most that movers take out, MiB per second; 0 for no limit.
    pub move_mib_s: u64,
    /// The processes.
    pub commands: Vec<Command>,
    /// When it began, seconds since 1970; 0 in a generated trace.
    pub started_unix_s: u64,
    /// The machine; none in a generated trace.
    pub machine: Option<Machine>,
}

impl Meta {
    /// Of a run by this configuration that begins now.
    pub fn of_run(config: &Config, costs: &[TierCost]) -> Meta {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Meta {
            source: "recorded".into(),
            is_exact: false,
            started_unix_s: now.map_or(0, |d| d.as_secs()),
            machine: Some(Machine::here()),
            ..Meta::of(config, costs, "measured")
        }
    }

    /// Of a generated trace, with this configuration's tiers.
    pub fn of(config: &Config, costs: &[TierCost], known: &str) -> Meta {
        Meta {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            source: "generated".into(),
            is_exact: true,
            window_s: config.run.window_s,
            policy: PolicyMeta::of(config),
            tiers: tiers(config, costs, known),
            cooling_windows: config.run.cooling_windows,
            samples_per_region: config.run.samples_per_region,
            move_mib_s: config.run.move_mib_s,
            commands: Vec::new(),
            started_unix_s: 0,
            machine: None,
        }
    }
}

/// Processor time of moving a page to a tier of a trace that does not say, in nanoseconds.
fn nominal_move_ns(tier: &TraceTier) -> f64 {
    match tier.codec.as_deref().and_then(Codec::from_name) {
        Some(codec) => costs::move_ns(codec),
        None => MOVE_NS_PER_PAGE,
    }
}

/// What tiers cost, DRAM first.
pub fn costs(tiers: &[TraceTier]) -> Vec<TierCost> {
    let cost = |t: &TraceTier| TierCost {
        fault_ns: t.fault_ns,
        ratio: t.ratio,
        move_ns: t.move_ns.unwrap_or_else(|| nominal_move_ns(t)),
        usd_per_gib_month: t.usd_per_gib_month,
    };
    tiers.iter().map(cost).collect()
}

/// The tiers of a configuration at these costs, DRAM first.
pub fn tiers(config: &Config, costs: &[TierCost], known: &str) -> Vec<TraceTier> {
    let tier = |(spec, cost): (Option<&TierSpec>, &TierCost)| TraceTier {
        name: spec.map_or_else(|| config.dram().name.clone(), |s| s.name.clone()),
        codec: spec.map(|s| s.codec.name().into()),
        level: spec.map_or(0, |s| s.level),
        pool: spec.map(|s| s.pool.name().into()),
        block_kib: spec.map_or(0, |s| s.block_kib),
        medium: spec.map_or_else(|| config.dram().name.clone(), |s| s.medium.name.clone()),
        usd_per_gib_month: cost.usd_per_gib_month,
        fault_ns: cost.fault_ns,
        ratio: cost.ratio,
        move_ns: Some(cost.move_ns),
        known: known.into(),
    };
    let specs = std::iter::once(None).chain(config.tiers.iter().map(Some));
    specs.zip(costs).map(tier).collect()
}

/// Where the parts of a trace are while it is recorded.
pub fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Parquet's logical name of each column that every trace has; `ratio_1` and on follow, one for
/// each compressed tier, and then three for each of what [`KnownCost`] holds.
pub(crate) const COLUMNS: &[(&str, &str)] = &[
    ("window", "int32 window (INTEGER(32,false))"),
    ("time_ms", "int64 time_ms (INTEGER(64,false))"),
    ("pid", "int32 pid (INTEGER(32,false))"),
    ("region", "int64 region (INTEGER(64,false))"),
    ("pages", "int32 pages (INTEGER(16,false))"),
    ("resident", "int32 resident (INTEGER(16,false))"),
    ("resident_at_open", "int32 resident_at_open (INTEGER(16,false))"),
    ("tier", "int32 tier (INTEGER(8,false))"),
    ("samples", "int32 samples (INTEGER(8,false))"),
    ("hits", "int32 hits (INTEGER(8,false))"),
    ("faults", "int32 faults (INTEGER(16,false))"),
    ("touched", "float touched"),
    ("stored_bytes", "int32 stored_bytes (INTEGER(32,false))"),
    ("running_ns", "int64 running_ns (INTEGER(64,false))"),
    ("stalled_ns", "int64 stalled_ns (INTEGER(64,false))"),
    ("cpu_ns", "int64 cpu_ns (INTEGER(64,false))"),
    ("contention", "float contention"),
    ("moved_pages", "int32 moved_pages (INTEGER(32,false))"),
    ("ahead_pages", "int32 ahead_pages (INTEGER(32,false))"),
    ("managed_bytes", "int64 managed_bytes (INTEGER(64,false))"),
    ("overhead_bytes", "int64 overhead_bytes (INTEGER(64,false))"),
    ("tco_saved", "float tco_saved"),
    (POOL_COLUMN, "int64 pool_bytes (INTEGER(64,false))"),
    (SERVED_COLUMN, "int32 served_faults (INTEGER(32,false))"),
];
/// Columns that older traces lack.
pub(crate) const POOL_COLUMN: &str = "pool_bytes";
/// See [`POOL_COLUMN`].
pub(crate) const SERVED_COLUMN: &str = "served_faults";
/// The only column beside those of tiers in which a row may have nothing.
pub(crate) const TO_COLUMN: &str = "move_to";
/// Columns of what is known of a tier; its index follows. Older traces lack them.
pub(crate) const KNOWN_COLUMNS: [&str; 3] = ["known_fault_ns_", "known_ratio_", "known_move_ns_"];

#[cfg(test)]
mod tests;
