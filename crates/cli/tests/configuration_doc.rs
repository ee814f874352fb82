//! docs/configuration.md is held to the code: its example is a valid file, and every key that a
//! file may have is in one of its tables, and no other.

use std::path::Path;

use terrace_cli::config::{file, Config, RunConfig};
use terrace_cli::preset::{self, Preset};

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    std::fs::read_to_string(path).expect("the document is part of the repository")
}

fn example(document: &str) -> Config {
    let text = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    file::parse("docs/configuration.md", text, Preset::Auto).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_example_is_valid_and_shows_the_defaults() {
    let config = example(&document());
    assert_eq!(config.tiers.len(), 3);
    assert_eq!(config.run, RunConfig::default(), "the example's [run] is the table of defaults");
    assert_eq!(config.dram().usd_per_gib_month, preset::DRAM_USD_PER_GIB_MONTH);
    let slow = preset::slow(preset::DRAM_USD_PER_GIB_MONTH);
    let shown = &config.tiers[2].medium;
    assert_eq!((shown.latency_ns, shown.bandwidth_mib_s), (slow.latency_ns, slow.bandwidth_mib_s));
    assert!((shown.usd_per_gib_month - slow.usd_per_gib_month).abs() < 1e-9);
}

#[test]
fn every_key_has_a_row_and_every_row_a_key() {
    let document = document();
    for (section, keys) in file::KEYS {
        let head = format!("[{section}]");
        let part = document
            .split("\n## ")
            .find(|part| part.lines().next().is_some_and(|l| l.contains(&head)))
            .unwrap_or_else(|| panic!("no section for {head}"));
        let mut rows: Vec<&str> = part
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.split('`').next())
            .filter(|name| Preset::from_name(name).is_none())
            .collect();
        let mut keys = keys.to_vec();
        rows.sort_unstable();
        keys.sort_unstable();
        assert_eq!(rows, keys, "in the section {head}");
    }
}
