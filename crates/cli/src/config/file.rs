//! A configuration file read key by key, so that every complaint can name its line.
//!
//! Deserialising into structs would be shorter, but then a wrong codec or a tier on an undefined
//! medium is found after the line numbers are gone.

use std::fmt;
use std::ops::Range;

use terrace_core::tier::{Codec, Medium, MediumKind, Place, Pool, TierSpec, BLOCK_KIB};
use toml_edit::{Document, Item, TableLike, Value};

use super::cold_age::{
    check_minute_s, check_percentile, check_scan_s, check_warm_up_s, parse_rate, ColdAgeConfig,
};
use super::{
    check_alpha, check_core_price, check_number, check_threads, check_tier_number, check_window_s,
    parse_money, parse_slowdown, with_dram, Clash, Config, PolicyConfig, PolicyKind, RunConfig,
    Threshold, COMPRESSED_TIERS_MAX, MOVE_THREADS_MAX,
};
use crate::media;
use crate::preset::Preset;

/// What is wrong with a configuration, where, and how to mend it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file; empty for an option of the command line.
    pub file: String,
    /// Line in the file, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// The key, such as `tier.codec`, or the option; may be empty.
    pub key: String,
    /// What is wrong and how to mend it.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
            if self.line > 0 {
                write!(f, "{}:", self.line)?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

type Result<T> = std::result::Result<T, ConfigError>;

const MEDIUM_KEYS: &[&str] = &[
    "name",
    "kind",
    "usd_per_gib_month",
    "latency_ns",
    "bandwidth_mib_s",
    "node",
    "directory",
    "path",
    "capacity_mib",
    "encrypt",
    "stand_in",
];
const TIER_KEYS: &[&str] = &["name", "codec", "level", "pool", "medium", "block_kib"];
const POLICY_KEYS: &[&str] = &[
    "kind",
    "alpha",
    "budget_money",
    "max_slowdown",
    "threshold",
    "two_tier",
    "usd_per_core_month",
];
pub(super) const COLD_AGE_KEYS: &[&str] =
    &["promotion_rate", "percentile", "warm_up_s", "minute_s", "scan_s"];
const RUN_KEYS: &[&str] = &[
    "window_s",
    "move_threads",
    "move_mib_s",
    "samples_per_region",
    "cutoff_bytes",
    "cooling_windows",
];

/// Every section of a file and its keys, for the test that holds the documentation to them.
pub const KEYS: &[(&str, &[&str])] = &[
    ("medium", MEDIUM_KEYS),
    ("tier", TIER_KEYS),
    ("policy", POLICY_KEYS),
    ("cold_age", COLD_AGE_KEYS),
    ("run", RUN_KEYS),
];

/// A GiB-month dearer than this is taken for cents or for a year's price.
const USD_PER_GIB_MONTH_MAX: f64 = 1_000.0;
/// Longest latency that an emulated medium can ask for: a page fault of a second helps nobody.
const LATENCY_NS_MAX: i64 = 1_000_000_000;
/// A tebibyte for one process: beyond this somebody took MiB for KiB.
const CAPACITY_MIB_MAX: i64 = 1 << 20;
/// A tebibyte per second: beyond this a limit is none.
const MIB_S_MAX: i64 = 1 << 20;

/// Reads the text of a configuration file called `file`. Tiers and media that it does not name
/// come from `preset`.
pub fn parse(file: &str, text: &str, preset: Preset) -> Result<Config> {
    parse_source(Source { file, text, opens_media: true }, preset)
}

/// Like [`parse`], for media that others have open: whether they could be opened now is not asked.
pub fn parse_opened(file: &str, text: &str, preset: Preset) -> Result<Config> {
    parse_source(Source { file, text, opens_media: false }, preset)
}

fn parse_source(source: Source, preset: Preset) -> Result<Config> {
    let text = source.text;
    let document = Document::parse(text).map_err(|e| {
        let line = e.span().map_or(0, |s| source.line_at(s.start));
        source.error(line, "", format!("not valid TOML: {}", e.message().replace('\n', " ")))
    })?;
    let root = Section { source, name: "", line: 1, table: document.as_table() };
    root.only(&["medium", "tier", "policy", "cold_age", "run"])?;

    let mut named: Vec<Medium> = Vec::new();
    for section in root.sections("medium")? {
        named.push(medium(&section, &named)?);
    }
    let media = with_dram(named);
    let mut tiers: Vec<TierSpec> = Vec::new();
    for section in root.sections("tier")? {
        if tiers.len() == COMPRESSED_TIERS_MAX {
            return Err(section.error_here(format!(
                "more than {COMPRESSED_TIERS_MAX} tiers; remove this one or merge two"
            )));
        }
        tiers.push(tier(&section, &media, &tiers)?);
    }

    let mut config = Config {
        preset: "file".into(),
        media,
        tiers,
        policy: PolicyConfig {
            cold_age: cold_age(root.section("cold_age")?)?,
            ..policy(root.section("policy")?)?
        },
        run: run(root.section("run")?)?,
        tiers_note: None,
    };
    if config.tiers.is_empty() {
        config.preset = preset.name().into();
        config.tiers = preset.tiers_on(&config.media);
        for medium in config.tiers.iter().map(|t| &t.medium) {
            if !config.media.iter().any(|m| m.name == medium.name) {
                config.media.push(medium.clone());
            }
        }
    }
    Ok(config)
}

/// Where in a file the values are that cannot be had together; `None` if they are not from there.
pub(super) fn blame(file: &str, text: &str, clash: &Clash) -> Option<ConfigError> {
    let source = Source { file, text, opens_media: false };
    let document = Document::parse(text).ok()?;
    let root = Section { source, name: "", line: 1, table: document.as_table() };
    clash.of.iter().find_map(|&(section, key, _)| {
        let section = root.section(section).ok()??;
        section.get(key).map(|_| section.error(key, clash.message.as_str()))
    })
}

fn medium(section: &Section, before: &[Medium]) -> Result<Medium> {
    section.only(MEDIUM_KEYS)?;
    let name = section.required("name", "name it, such as \"dram\" or \"slow\"")?;
    let name = name.text()?;
    if name.is_empty() || name.contains(['+', ' ', '\n']) {
        return Err(section.error(
            "name",
            format!("{name:?} is not a name; use letters, digits, - and _ (+ joins tier names)"),
        ));
    }
    if before.iter().any(|m| m.name == name) {
        return Err(
            section.error("name", format!("{name:?} is defined twice; give one another name"))
        );
    }
    let known = MediumKind::ALL.map(MediumKind::name).join(", ");
    let kind_name = section.required("kind", &format!("add one of {known}"))?.text()?;
    let kind = MediumKind::from_name(kind_name).ok_or_else(|| {
        section.error("kind", format!("{kind_name:?} is not a kind; one of {known}"))
    })?;
    own_keys_only(section, kind)?;
    if kind == MediumKind::Dram && before.iter().any(|m| m.kind == MediumKind::Dram) {
        return Err(section.error(
            "kind",
            "there is one dram medium already; a machine has one DRAM, so remove this medium",
        ));
    }
    let usd_per_gib_month = section
        .required("usd_per_gib_month", "add the price, such as usd_per_gib_month = 0.30")?
        .number(0.0, USD_PER_GIB_MONTH_MAX, "US dollars per GiB and month")?;
    let (latency_ns, bandwidth_mib_s) = match kind {
        // Both must be stated: a report that says "emulated" has to say as what.
        MediumKind::Emulated => {
            let (Some(latency_ns), Some(bandwidth_mib_s)) =
                (section.get("latency_ns"), section.get("bandwidth_mib_s"))
            else {
                return Err(section.error_here(
                    "an emulated medium must state latency_ns and bandwidth_mib_s (0 for \
                     unlimited); add them",
                ));
            };
            (
                latency_ns.integer(0, LATENCY_NS_MAX, "nanoseconds")?,
                bandwidth_mib_s.integer(0, MIB_S_MAX, "MiB per second, 0 for unlimited")?,
            )
        }
        _ => (0, 0),
    };
    Ok(Medium {
        name: name.into(),
        kind,
        usd_per_gib_month,
        latency_ns,
        bandwidth_mib_s,
        place: place(section, kind)?,
    })
}

/// Refuses keys that only make sense for another kind of medium.
fn own_keys_only(section: &Section, kind: MediumKind) -> Result<()> {
    use MediumKind::{Dax, Emulated, File, Numa};
    let owners: [(&'static str, &[MediumKind], &str); 8] = [
        ("latency_ns", &[Emulated], "only an emulated medium is slowed down"),
        ("bandwidth_mib_s", &[Emulated], "only an emulated medium is slowed down"),
        ("node", &[Numa], "only memory of kind numa has a node"),
        ("directory", &[File], "only a file lies in a directory"),
        ("path", &[Dax], "only a dax medium has a path; a file has a directory"),
        ("capacity_mib", &[Numa, File, Dax], "memory is as large as it is"),
        ("encrypt", &[Dax], "only for dax is that a choice; a file is always encrypted"),
        ("stand_in", &[Dax], "only a dax medium has a device to stand in for"),
    ];
    for (key, kinds, why) in owners {
        if section.get(key).is_some() && !kinds.contains(&kind) {
            let kinds = kinds.iter().map(|k| format!("kind = {:?}", k.name()));
            let kinds = kinds.collect::<Vec<_>>().join(" or ");
            return Err(section.error(key, format!("{why}; remove the key or use {kinds}")));
        }
    }
    Ok(())
}

/// Where a medium is. What this machine does not have is refused here, where the line is known.
fn place(section: &Section, kind: MediumKind) -> Result<Place> {
    let mut place = Place::default();
    if let Some(field) = section.get("capacity_mib") {
        place.capacity_bytes = field.integer(1, CAPACITY_MIB_MAX, "MiB")? << 20;
    }
    let opens = section.source.opens_media;
    let tried = |check: &dyn Fn() -> std::result::Result<(), String>| match opens {
        true => check(),
        false => Ok(()),
    };
    let (key, found) = match kind {
        MediumKind::Dram | MediumKind::Emulated => return Ok(place),
        MediumKind::Numa => {
            let field = section.required("node", "add the number of the node, such as node = 1")?;
            place.node = field.small(0, 1023, "nodes of a machine")?;
            ("node", tried(&|| media::check_node(place.node)))
        }
        MediumKind::File => {
            let mend = "add a directory for the file, such as directory = \"/var/tmp\"";
            place.path = media::absolute(section.required("directory", mend)?.text()?);
            section.required("capacity_mib", "say how much may go there at most, in MiB")?;
            ("directory", tried(&|| media::check_directory(&place.path)))
        }
        MediumKind::Dax => {
            let mend = "add the device or file, such as path = \"/dev/dax0.0\"";
            place.path = media::absolute(section.required("path", mend)?.text()?);
            place.is_enciphered = section.get("encrypt").map_or(Ok(true), |f| f.truth())?;
            let stands_in = section.get("stand_in").map_or(Ok(false), |f| f.truth())?;
            ("path", tried(&|| media::check_dax(&place.path, place.capacity_bytes, stands_in)))
        }
    };
    found.map(|()| place).map_err(|message| section.error(key, message))
}

fn tier(section: &Section, media: &[Medium], before: &[TierSpec]) -> Result<TierSpec> {
    section.only(TIER_KEYS)?;
    let codec_name = section.required("codec", "add codec = \"lz4\", \"lzo\", ...")?.text()?;
    let codec = Codec::from_name(codec_name).ok_or_else(|| {
        let known = Codec::ALL.map(Codec::name).join(", ");
        section.error("codec", format!("{codec_name:?} is not a codec; one of {known}"))
    })?;
    let pool_name = section.required("pool", "add pool = \"zbud\", \"zsmalloc\", ...")?.text()?;
    let pool = Pool::from_name(pool_name).ok_or_else(|| {
        let known = Pool::ALL.map(Pool::name).join(", ");
        section.error("pool", format!("{pool_name:?} is not a pool; one of {known}"))
    })?;
    let medium_name = section.required("medium", "add the name of a medium")?.text()?;
    let medium = media.iter().find(|m| m.name == medium_name).ok_or_else(|| {
        let known = media.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ");
        section.error(
            "medium",
            format!(
                "{medium_name:?} is not defined; add a [[medium]] with this name or use one of \
                 {known}"
            ),
        )
    })?;
    let mut tier = match block_kib(section, codec)? {
        0 => TierSpec::new(pool, codec, medium.clone()),
        kib => TierSpec::with_blocks(pool, kib, medium.clone()),
    };
    let level_unless_named = tier.level;
    if let Some(level) = section.get("level") {
        let (lo, hi) = codec.levels();
        let level = level.integer_between(lo.into(), hi.into(), &format!("levels of {codec_name}"));
        tier.level = i32::try_from(level?).expect("within the codec's levels");
    }
    if let Some(name) = section.get("name") {
        tier.name = name.text()?.into();
    } else if tier.level != level_unless_named {
        // Two levels of one codec are two tiers, and must not need a name to tell them apart.
        let block =
            if tier.block_kib > 0 { format!("+{}k", tier.block_kib) } else { String::new() };
        tier.name = format!("{pool_name}+{codec_name}{:+}{block}+{medium_name}", tier.level);
    }
    if tier.name.is_empty()
        || tier.name.eq_ignore_ascii_case("dram")
        || before.iter().any(|t| t.name == tier.name)
    {
        let message = format!("{:?} is taken or empty; give this tier another name", tier.name);
        return Err(section.error("name", message));
    }
    Ok(tier)
}

/// How much a tier compresses together; 0 for single pages.
fn block_kib(section: &Section, codec: Codec) -> Result<u8> {
    let Some(field) = section.get("block_kib") else { return Ok(0) };
    let asked = field.integer_between(0, i64::MAX, "KiB; 0 for single pages")?;
    if asked == 0 {
        return Ok(0);
    }
    let Some(kib) = BLOCK_KIB.into_iter().find(|kib| i64::from(*kib) == asked) else {
        let known = BLOCK_KIB.map(|kib| kib.to_string()).join(", ");
        return Err(field.error(format!("{asked} is no size of a block; use one of {known}")));
    };
    if codec != Codec::Zstd {
        let message = format!(
            "only zstd compresses blocks, and this tier's codec is {}; remove the key or use \
             codec = \"zstd\"",
            codec.name()
        );
        return Err(section.error("block_kib", message));
    }
    Ok(kib)
}

fn policy(section: Option<Section>) -> Result<PolicyConfig> {
    let mut policy = PolicyConfig::default();
    let Some(section) = section else { return Ok(policy) };
    section.only(POLICY_KEYS)?;
    let knob_of_analytical =
        ["alpha", "budget_money"].into_iter().any(|k| section.get(k).is_some());
    if let Some(kind) = section.get("kind") {
        let name = kind.text()?;
        policy.kind = PolicyKind::ALL.into_iter().find(|k| k.name() == name).ok_or_else(|| {
            let known = PolicyKind::ALL.map(PolicyKind::name).join(", ");
            section.error("kind", format!("{name:?} is not a policy; one of {known}"))
        })?;
    } else if knob_of_analytical {
        policy.kind = PolicyKind::Analytical;
    }
    if let Some(alpha) = section.get("alpha") {
        let value = alpha.float()?;
        policy.alpha = check_alpha(value).map_err(|m| section.error("alpha", m))?;
    }
    if let Some(money) = section.get("budget_money") {
        let parsed = match money.item.as_str() {
            Some(text) => parse_money(text),
            None => parse_money(&money.float()?.to_string()),
        };
        policy.money = Some(parsed.map_err(|m| section.error("budget_money", m))?);
        let other = ["alpha", "max_slowdown"].into_iter().find(|k| section.get(k).is_some());
        if let Some(other) = other {
            let message = format!("a budget of money and {other} exclude each other; remove one");
            return Err(section.error("budget_money", message));
        }
        if policy.kind != PolicyKind::Analytical && policy.kind != PolicyKind::None {
            let message = format!(
                "it is a budget of the policy analytical, and kind is {:?}; remove one",
                policy.kind.name()
            );
            return Err(section.error("budget_money", message));
        }
    }
    if let Some(slowdown) = section.get("max_slowdown") {
        policy.max_slowdown =
            parse_slowdown(slowdown.text()?).map_err(|m| section.error("max_slowdown", m))?;
        if section.get("kind").is_none() {
            policy.kind = PolicyKind::Slowdown;
        }
    }
    let is_undecided = section.get("kind").is_none();
    if is_undecided && section.get("alpha").is_some() && section.get("max_slowdown").is_some() {
        let message = "it chooses the policy slowdown, and alpha chooses analytical; remove one, \
                       or add kind with the policy that is meant";
        return Err(section.error("max_slowdown", message));
    }
    if let Some(usd) = section.get("usd_per_core_month") {
        policy.usd_per_core_month =
            check_core_price(usd.float()?).map_err(|m| section.error("usd_per_core_month", m))?;
    }
    if let Some(threshold) = section.get("threshold") {
        let parsed = match threshold.item.as_str() {
            Some(text) => Threshold::parse(text),
            None => Threshold::hotness(threshold.float()?),
        };
        policy.threshold = parsed.map_err(|m| section.error("threshold", m))?;
    }
    if let Some(field) = section.get("two_tier") {
        let number = field.small(1, COMPRESSED_TIERS_MAX as u32, "compressed tiers")?;
        policy.two_tier = check_tier_number(number).map_err(|m| section.error("two_tier", m))?;
    }
    Ok(policy)
}

fn cold_age(section: Option<Section>) -> Result<ColdAgeConfig> {
    let mut config = ColdAgeConfig::default();
    let Some(section) = section else { return Ok(config) };
    section.only(COLD_AGE_KEYS)?;
    if let Some(rate) = section.get("promotion_rate") {
        config.promotion_rate =
            parse_rate(rate.text()?).map_err(|m| section.error("promotion_rate", m))?;
    }
    let read = |key, check: fn(f64) -> std::result::Result<f64, String>| {
        let Some(field) = section.get(key) else { return Ok(None) };
        check(field.float()?).map(Some).map_err(|m| section.error(key, m))
    };
    config.percentile = read("percentile", check_percentile)?.unwrap_or(config.percentile);
    config.warm_up_s = read("warm_up_s", check_warm_up_s)?.or(config.warm_up_s);
    config.minute_s = read("minute_s", check_minute_s)?.unwrap_or(config.minute_s);
    config.scan_s = read("scan_s", check_scan_s)?.or(config.scan_s);
    Ok(config)
}

fn run(section: Option<Section>) -> Result<RunConfig> {
    let mut run = RunConfig::default();
    let Some(section) = section else { return Ok(run) };
    section.only(RUN_KEYS)?;
    if let Some(field) = section.get("window_s") {
        run.window_s = check_window_s(field.float()?).map_err(|m| section.error("window_s", m))?;
    }
    if let Some(field) = section.get("move_threads") {
        let threads = field.small(1, MOVE_THREADS_MAX, "threads")?;
        run.move_threads = check_threads(threads).map_err(|m| section.error("move_threads", m))?;
    }
    if let Some(field) = section.get("move_mib_s") {
        run.move_mib_s = field.integer(0, MIB_S_MAX, "MiB per second, 0 for no limit")?;
    }
    if let Some(field) = section.get("samples_per_region") {
        run.samples_per_region = field.small(0, 64, "pages of a region")?;
    }
    if let Some(field) = section.get("cutoff_bytes") {
        run.cutoff_bytes = field.small(64, 4_096, "bytes of a 4 KiB page")?;
    }
    if let Some(field) = section.get("cooling_windows") {
        // Far below the 256 windows modulo which terrace_core::state tells a page's age.
        run.cooling_windows = field.small(0, 15, "windows")?;
    }
    Ok(run)
}

/// The file, for line numbers and messages.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    /// Whether it is tried if its media can be had on this machine.
    opens_media: bool,
}

impl Source<'_> {
    fn line_at(self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    fn error(self, line: usize, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError { file: self.file.into(), line, key: key.into(), message: message.into() }
    }
}

/// One table of the file.
struct Section<'a> {
    source: Source<'a>,
    name: &'static str,
    line: usize,
    table: &'a dyn TableLike,
}

impl<'a> Section<'a> {
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.into()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// An error at a key of the section, or at its header when the key is absent.
    fn error(&self, key: &str, message: impl Into<String>) -> ConfigError {
        self.source.error(self.key_line(key), &self.path(key), message)
    }

    fn error_here(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(self.line, self.name, message)
    }

    fn key_line(&self, key: &str) -> usize {
        self.table
            .get_key_value(key)
            .and_then(|(key, _)| key.span())
            .map_or(self.line, |span| self.source.line_at(span.start))
    }

    /// Refuses keys that are not in `known`, the first in the file first.
    fn only(&self, known: &[&str]) -> Result<()> {
        let unknown = self
            .table
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !known.contains(key))
            .min_by_key(|key| self.key_line(key));
        match unknown {
            None => Ok(()),
            Some(key) => {
                let message = format!("unknown key; one of {}", known.join(", "));
                Err(self.error(key, message))
            }
        }
    }

    fn get(&self, key: &'static str) -> Option<Field<'a>> {
        let item = self.table.get(key).filter(|item| !item.is_none())?;
        Some(Field { item, source: self.source, line: self.key_line(key), path: self.path(key) })
    }

    fn required(&self, key: &'static str, mend: &str) -> Result<Field<'a>> {
        self.get(key).ok_or_else(|| self.error(key, format!("missing; {mend}")))
    }

    /// A sub-table, `[name]`.
    fn section(&self, name: &'static str) -> Result<Option<Section<'a>>> {
        let Some(item) = self.table.get(name) else { return Ok(None) };
        let table = item
            .as_table_like()
            .ok_or_else(|| self.error(name, format!("not a table; write it as [{name}]")))?;
        Ok(Some(self.child(name, item.span(), table)))
    }

    /// A list of sub-tables, `[[name]]`.
    fn sections(&self, name: &'static str) -> Result<Vec<Section<'a>>> {
        let not_a_list = || self.error(name, format!("not a list; write it as [[{name}]]"));
        match self.table.get(name) {
            None => Ok(Vec::new()),
            Some(Item::ArrayOfTables(tables)) => {
                Ok(tables.iter().map(|t| self.child(name, t.span(), t)).collect())
            }
            Some(Item::Value(Value::Array(values))) => values
                .iter()
                .map(|value| {
                    let table = value.as_inline_table().ok_or_else(not_a_list)?;
                    Ok(self.child(name, table.span(), table))
                })
                .collect(),
            Some(_) => Err(not_a_list()),
        }
    }

    fn child(
        &self,
        name: &'static str,
        span: Option<Range<usize>>,
        table: &'a dyn TableLike,
    ) -> Section<'a> {
        let line = span.map_or(self.key_line(name), |s| self.source.line_at(s.start));
        Section { source: self.source, name, line, table }
    }
}

/// One value of the file with its place.
struct Field<'a> {
    item: &'a Item,
    source: Source<'a>,
    line: usize,
    path: String,
}

impl<'a> Field<'a> {
    fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(self.line, &self.path, message)
    }

    fn wrong_type(&self, wanted: &str) -> ConfigError {
        self.error(format!("{} found; write {wanted}", self.item.type_name()))
    }

    fn text(&self) -> Result<&'a str> {
        self.item.as_str().ok_or_else(|| self.wrong_type("a string in quotes"))
    }

    fn truth(&self) -> Result<bool> {
        self.item.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    fn float(&self) -> Result<f64> {
        // 1 and 1.0 are the same wish.
        self.item
            .as_float()
            .or_else(|| self.item.as_integer().map(|n| n as f64))
            .ok_or_else(|| self.wrong_type("a number"))
    }

    fn number(&self, lo: f64, hi: f64, what: &str) -> Result<f64> {
        check_number(self.float()?, lo, hi, what).map_err(|m| self.error(m))
    }

    fn integer_between(&self, lo: i64, hi: i64, what: &str) -> Result<i64> {
        let value = self.item.as_integer().ok_or_else(|| self.wrong_type("a whole number"))?;
        if (lo..=hi).contains(&value) {
            Ok(value)
        } else {
            Err(self.error(format!("{value} is out of range; use {lo} to {hi} ({what})")))
        }
    }

    fn integer(&self, lo: i64, hi: i64, what: &str) -> Result<u64> {
        let value = self.integer_between(lo, hi, what)?;
        Ok(u64::try_from(value).expect("lower bounds are not negative"))
    }

    fn small(&self, lo: u32, hi: u32, what: &str) -> Result<u32> {
        let value = self.integer_between(lo.into(), hi.into(), what)?;
        Ok(u32::try_from(value).expect("bounds are u32"))
    }
}

#[cfg(test)]
mod tests;
