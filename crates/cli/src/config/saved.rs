//! The recommendation on this machine's disk: what `terrace tiers characterize --save` leaves for
//! the preset `auto`.
//!
//! It is a configuration file like any other ([`super::file`]), so it can be read, changed
//! and handed to `--config` as well. Its first lines say which machine it was made on and when; on
//! another machine - a home directory can be everywhere - it is not used, because latencies and
//! media are those of its machine.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use terrace_core::tier::{Medium, MediumKind, TierSpec};

use super::{file, write, Config};
use crate::machine::Machine;
use crate::preset::Preset;

const MACHINE: &str = "# machine: ";
const DATE: &str = "# date: ";

/// What was found.
#[derive(Clone, PartialEq, Debug)]
pub enum Saved {
    /// Nothing was saved.
    None,
    /// Tiers to use in place of the built-in ones.
    Tiers(SavedTiers),
    /// Something that is not used, and why.
    Ignored(String),
}

/// Tiers that were saved for this machine.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedTiers {
    /// The tiers with the media and prices that they were chosen at.
    pub tiers: Vec<TierSpec>,
    /// The file.
    pub path: PathBuf,
    /// When it was saved, as it says.
    pub date: String,
}

/// Where the recommendation is kept: `$XDG_STATE_HOME/terrace/auto.toml`, by default below
/// `~/.local/state`. `None` without a home.
pub fn path() -> Option<PathBuf> {
    // XDG says that a relative path is to be ignored.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("terrace/auto.toml"))
}

/// What makes latencies those of another machine. Not the kernel: an update would end it.
fn fingerprint(machine: &Machine) -> String {
    let gib = machine.memory_bytes as f64 / (1u64 << 30) as f64;
    let (model, cpus) = (&machine.cpu_model, machine.cpus);
    let kind = if machine.is_virtual { ", virtual machine" } else { "" };
    format!("{model}, {cpus} CPUs, {gib:.0} GiB, {}{kind}", machine.arch)
}

/// The file's text, or why these tiers cannot be kept.
pub fn text(tiers: &[TierSpec], dram: &Medium, machine: &Machine, notes: &str) -> Result<String> {
    ensure!(!tiers.is_empty(), "no tier is recommended, so there is nothing to save");
    ensure!(
        tiers.iter().all(|t| t.medium.kind != MediumKind::Emulated),
        "an emulated medium is not kept for `auto`"
    );
    let text = format!(
        "# Tiers of the preset `auto`, chosen by `terrace tiers characterize --save`.\n\
         # Remove this file to have the built-in ones again.\n\
         {MACHINE}{}\n{notes}\n{}",
        fingerprint(machine),
        write::toml(dram, tiers)
    );
    let read = file::parse("auto.toml", &text, Preset::Auto)?;
    ensure!(
        read.tiers == tiers,
        "a configuration file cannot say these tiers; this is a bug in Terrace"
    );
    Ok(text)
}

/// Notes for [`text`]: date and data as comments.
pub fn notes(date: &str, data: &str) -> String {
    format!("{DATE}{date}\n# data: {}", data.replace('\n', " "))
}

/// Writes the file, whole or not at all.
pub fn save(path: &Path, text: &str) -> Result<()> {
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let new = path.with_extension(format!("new-{}", std::process::id()));
        fs::write(&new, text)?;
        fs::rename(&new, path).inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    };
    write().with_context(|| format!("--save: {} cannot be written", path.display()))
}

/// What there is for this machine.
pub fn load() -> Saved {
    path().map_or(Saved::None, |path| load_from(&path, &Machine::here()))
}

fn load_from(path: &Path, machine: &Machine) -> Saved {
    let ignored = |why: String| {
        Saved::Ignored(format!("{} is not used: {why}; the built-in tiers are", path.display()))
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
            return Saved::None
        }
        Err(e) => return ignored(e.to_string()),
    };
    let said = |what: &str| text.lines().find_map(|l| l.strip_prefix(what)).unwrap_or("").trim();
    // Without the line somebody wrote the file by hand, and knows.
    let (theirs, ours) = (said(MACHINE), fingerprint(machine));
    if !theirs.is_empty() && theirs != ours {
        return ignored(format!(
            "it was made on another machine ({theirs}; this is {ours}), `terrace tiers \
             characterize --save` makes one here"
        ));
    }
    let config = match file::parse(&path.display().to_string(), &text, Preset::Auto) {
        Ok(config) => config,
        Err(e) => return ignored(e.to_string()),
    };
    if config.is_emulated() {
        return ignored("a tier of it is on an emulated medium".into());
    }
    if config.preset != "file" {
        return ignored("it names no tier".into());
    }
    let date = if said(DATE).is_empty() { "at an unknown time" } else { said(DATE) };
    Saved::Tiers(SavedTiers { tiers: config.tiers, path: path.into(), date: date.into() })
}

impl SavedTiers {
    /// Puts the tiers in the place of a configuration's own. Media that the configuration has
    /// itself keep its price: DRAM is DRAM, others go by their names.
    pub fn put_into(self, config: &mut Config) {
        let mut tiers = self.tiers;
        for tier in &mut tiers {
            let same = |m: &&Medium| {
                let is_dram = m.kind == MediumKind::Dram;
                m.kind == tier.medium.kind && (is_dram || m.name == tier.medium.name)
            };
            match config.media.iter().find(same) {
                Some(medium) => tier.medium = medium.clone(),
                None => config.media.push(tier.medium.clone()),
            }
        }
        config.tiers = tiers;
        let line = format!(
            "auto: {} tiers of {}, saved {}",
            config.tiers.len(),
            self.path.display(),
            self.date
        );
        config.tiers_note = Some(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::TempDir;
    use crate::preset;
    use terrace_core::tier::{Codec, Pool};

    fn tiers(usd: f64) -> Vec<TierSpec> {
        let dram = preset::dram(usd);
        let codecs = [Codec::Lz4, Codec::Deflate];
        codecs.map(|c| TierSpec::new(Pool::Zsmalloc, c, dram.clone())).into()
    }

    fn saved(folder: &TempDir, change: impl Fn(String) -> String) -> Saved {
        let path = folder.path().join("deep/auto.toml");
        let machine = Machine::here();
        let notes = notes("2026-01-02", "x");
        let text = text(&tiers(0.3), &preset::dram(0.3), &machine, &notes).unwrap();
        save(&path, &change(text)).unwrap();
        load_from(&path, &machine)
    }

    #[test]
    fn what_is_saved_is_found_again() {
        let folder = TempDir::new("saved").unwrap();
        let machine = Machine::here();
        assert_eq!(load_from(&folder.path().join("nothing"), &machine), Saved::None);
        let Saved::Tiers(found) = saved(&folder, |t| t) else { panic!("not found") };
        assert_eq!((found.tiers.as_slice(), found.date.as_str()), (&*tiers(0.3), "2026-01-02"));
        let mut config = Config::from_preset(Preset::Auto);
        config.media = vec![preset::dram(2.0)];
        found.put_into(&mut config);
        assert_eq!(config.tiers, tiers(2.0), "the configuration's price counts");
        assert_eq!(config.media.len(), 1);
        assert!(config.tiers_note.unwrap().starts_with("auto: 2 tiers of "));
        let left: Vec<_> = fs::read_dir(folder.path().join("deep")).unwrap().collect();
        assert_eq!(left.len(), 1, "no half-written file stays");
    }

    #[test]
    fn what_does_not_hold_here_is_not_used_and_says_why() {
        let folder = TempDir::new("saved").unwrap();
        let why = |change: &dyn Fn(String) -> String| match saved(&folder, change) {
            Saved::Ignored(why) => why,
            other => panic!("{other:?}"),
        };
        let elsewhere = why(&|t| t.replacen(MACHINE, "# machine: Another ", 1));
        assert!(elsewhere.contains("another machine (Another "), "{elsewhere}");
        assert!(why(&|t| t.replace("\"lz4\"", "\"lz5\"")).contains("\"lz5\" is not a codec"));
        assert!(why(&|t| t[..t.find("[[tier]]").unwrap()].into()).contains("names no tier"));
        let emulated = "kind = \"emulated\"\nlatency_ns = 1\nbandwidth_mib_s = 0";
        let slow =
            |t: String| t.replace("\"dram\"", "\"slow\"").replace("kind = \"slow\"", emulated);
        assert!(why(&slow).contains("emulated"), "{}", why(&slow));
    }

    #[test]
    fn emulated_media_are_not_saved() {
        let slow = [TierSpec::new(Pool::Zbud, Codec::Lz4, preset::slow(0.3))];
        let machine = Machine::here();
        let error = |tiers| text(tiers, &preset::dram(0.3), &machine, "").unwrap_err().to_string();
        assert!(error(&slow[..]).contains("emulated"));
        assert!(error(&[]).contains("nothing to save"));
    }
}
