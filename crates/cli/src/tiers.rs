//! `terrace tiers`: `list` shows the tiers that a preset or a file asks for, as the planner will
//! number them; [`characterize`] measures what there is to choose from.

use std::fmt::Write as _;

use serde::Serialize;
use terrace_core::tier::{Medium, MediumKind, TierId};

use crate::config::{Config, ConfigArgs, ConfigError};
use crate::media;

pub mod characterize;
mod data;
mod heap;
mod heaps;
mod in_process;
mod live;
mod pareto;
mod plot;
mod report;

/// One row of the list.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TierRow {
    /// `T0` is DRAM.
    pub id: String,
    /// Name in reports.
    pub name: String,
    /// Codec; `None` for DRAM.
    pub codec: Option<&'static str>,
    /// Level of the codec.
    pub level: Option<i32>,
    /// KiB that are compressed together; 0 for single pages.
    pub block_kib: u8,
    /// Pool manager.
    pub pool: Option<&'static str>,
    /// Name of the medium.
    pub medium: String,
    /// What the medium is made of.
    pub kind: &'static str,
    /// What and where it is, in a few words.
    pub place: String,
    /// Price of the medium.
    pub usd_per_gib_month: f64,
    /// Whether the medium only stands in for one that this machine does not have.
    pub emulated: bool,
    /// Latency that the emulation adds.
    pub latency_ns: u64,
    /// Bandwidth that the emulation leaves; 0 for unlimited.
    pub bandwidth_mib_s: u64,
}

/// The tiers of a configuration, DRAM first.
pub fn rows(config: &Config) -> Vec<TierRow> {
    let dram = row(TierId::DRAM, "DRAM", config.dram());
    let compressed = config.tiers.iter().zip(1u8..).map(|(tier, n)| TierRow {
        codec: Some(tier.codec.name()),
        level: Some(tier.level),
        block_kib: tier.block_kib,
        pool: Some(tier.pool.name()),
        ..row(TierId(n), &tier.name, &tier.medium)
    });
    std::iter::once(dram).chain(compressed).collect()
}

fn row(id: TierId, name: &str, medium: &Medium) -> TierRow {
    TierRow {
        id: id.to_string(),
        name: name.into(),
        codec: None,
        level: None,
        block_kib: 0,
        pool: None,
        medium: medium.name.clone(),
        kind: medium.kind.name(),
        place: media::describe(medium),
        usd_per_gib_month: medium.usd_per_gib_month,
        emulated: medium.kind == MediumKind::Emulated,
        latency_ns: medium.latency_ns,
        bandwidth_mib_s: medium.bandwidth_mib_s,
    }
}

/// The list as a person reads it.
pub fn table(rows: &[TierRow]) -> String {
    let name_width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max(4);
    let medium_width = rows.iter().map(|r| r.medium.len()).max().unwrap_or(0).max(6);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<3}  {:<name_width$}  {:<7}  {:>5}  {:<8}  {:<medium_width$}  {:>13}  which is",
        "id", "name", "codec", "level", "pool", "medium", "USD/GiB-month"
    );
    for r in rows {
        let level = r.level.map_or("-".into(), |l| l.to_string());
        let together = match r.block_kib {
            0 => String::new(),
            kib => format!(", {kib} KiB compressed together"),
        };
        let _ = writeln!(
            out,
            "{:<3}  {:<name_width$}  {:<7}  {level:>5}  {:<8}  {:<medium_width$}  {:>13.3}  {}\
             {together}",
            r.id,
            r.name,
            r.codec.unwrap_or("-"),
            r.pool.unwrap_or("-"),
            r.medium,
            r.usd_per_gib_month,
            r.place,
        );
    }
    if rows.iter().any(|r| r.emulated) {
        out.push_str(
            "\nemulated media are DRAM made slower: their prices count for TCO in per cent, not \
             for money saved\n",
        );
    }
    out
}

/// `terrace tiers list`: prints the tiers.
pub fn list(args: &ConfigArgs, json: bool) -> Result<(), ConfigError> {
    let config = args.resolve()?;
    let rows = rows(&config);
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("plain data"));
    } else {
        print!("{}", table(&rows));
        if let Some(note) = config.tiers_note {
            println!("\n{note}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn tierscape_is_listed_with_its_emulation() {
        let rows = rows(&Config::from_preset(Preset::Tierscape));
        assert_eq!(rows.len(), 6);
        assert_eq!((rows[0].id.as_str(), rows[0].codec, rows[0].emulated), ("T0", None, false));
        assert_eq!((rows[5].id.as_str(), rows[5].codec), ("T5", Some("deflate")));
        let text = table(&rows);
        assert!(text.contains("+300 ns, 2000 MiB/s") && text.contains("not for money saved"));
        assert_eq!(text.lines().count(), 1 + 6 + 2);
    }

    #[test]
    fn blocks_are_said() {
        let rows = rows(&Config::from_preset(Preset::Auto));
        assert_eq!((rows[2].block_kib, rows[3].block_kib), (0, 64));
        assert_eq!(table(&rows).matches("64 KiB compressed together").count(), 1);
    }

    #[test]
    fn auto_says_nothing_about_emulation() {
        let text = table(&rows(&Config::from_preset(Preset::Auto)));
        assert!(!text.contains(" ns") && !text.contains("made slower"), "{text}");
    }
}
