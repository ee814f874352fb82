//! `terrace tiers characterize`: TierScape's Figure 3 for any data. Every codec, pool and medium
//! that there is makes a tier; for each the latency of a fault and the cost of holding the data,
//! and which few of them are worth having.
//!
//! In order: pages are collected (`data`); every tier stores and loads them in this process
//! (`in_process`), which gives exact sizes and the part of the latency in which tiers differ; the
//! fastest, the slowest and all that are near a frontier are measured with real faults (`live`),
//! again until every tier on a frontier is; all are fitted; the frontier is drawn and a set chosen
//! (`pareto`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use terrace_core::tier::{Codec, Medium, MediumKind, Pool, TierSpec};
use terrace_store::codec::dictionary::Dictionaries;
use terrace_store::{Page, PAGE_SIZE};

use super::data::Data;
use super::in_process::{self, Encoded, Once, Times};
use super::live::{left_out_errors, median, Fit, Live};
use super::report::{ComposedError, FitFigures, How, Report, Row};
use super::{heaps, plot};
use crate::bench::fault::{Measured, TierSubject as Subject, PAGES_MIN};
use crate::bench::figures::loadavg;
use crate::bench::kernel_swap::{catch_interrupts, interrupted};
use crate::config::{saved, Config};
use crate::demo::progress::Progress;
use crate::demo::redis::TempDir;
use crate::machine::Machine;
use crate::output;
use crate::preflight::uffd_probe;
use crate::preset;
use crate::say;

/// Tiers that would be on a frontier if they were this share faster are measured live: more than
/// composing is wrong by.
const CONTENDER_MARGIN: f64 = 0.25;
/// A tier whose pages cost more than this share of DRAM is not measured live: the planner may
/// rightly leave its pages where they are, and it saves next to nothing.
const LIVE_COST_MAX: f64 = 0.9;
/// Blocks that are measured, and where: most of their pieces are whole pages, so pools hardly
/// differ.
const BLOCKS_KIB: [u8; 2] = [16, 64];
const BLOCKS_IN: Pool = Pool::Zsmalloc;
/// Rounds of measuring live what the last round put on a frontier.
const ROUNDS_MAX: usize = 4;
/// Fitted latencies differ by noise of the loads only, which is below a microsecond.
const LATENCY_TOLERANCE: f64 = 0.05;
/// Pages that a dictionary is trained on, about, and the least share of all of them that these are
/// (one in so many). They are not measured with.
const TRAINING_PAGES: usize = 256;
const TRAINING_SHARE: usize = 4;
/// Costs are counted, not timed; another sample of the same data differs by about this.
const TCO_TOLERANCE: f64 = 0.01;

/// Which tiers are measured with real faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Which {
    /// The fastest, the slowest, and all that are on or near a frontier
    Contenders,
    /// All that save anything; seconds for each and repetition
    All,
}

/// Latency, savings and cost of every possible tier on your data, and which to use
///
/// Every codec over every pool, and zstd over blocks of 16 and 64 KiB, on DRAM and on an emulated
/// slow medium, and on the media of a --config file, is measured on pages of the heaps of a Python
/// and a Redis of its own, or of --data or --pid. The table has, for each: fault latency p50 and
/// p99 (`live`: real faults; `composed`: by the fit), the same fitted (what live faults have in
/// common, plus a factor times load and decode in a loop; tiers are compared by it, since live
/// noise is larger than most of their differences), codec ratio, all that is stored over the
/// original, what the pool adds to the encodings, pages refused, time to compress a page, and TCO
/// relative to DRAM with refused pages counted as DRAM.
///
/// JSON (--json): `tiers[]` with `name`, `codec`, `level`, `block_kib` (0 for single pages),
/// `pool`, `medium`, `emulated`, `measured`, `fault_p50_ns`, `fault_p99_ns`, `fault_fitted_ns`,
/// `load_p50_ns`, `compress_ns_p50`, `codec_ratio`, `ratio` (stored / original, pool included),
/// `pool_overhead`, `refused_share`, `tco_normalized`, `pareto`, `pareto_real`, `recommended`,
/// `recommended_with_emulated`; the lists `recommended` and `recommended_with_emulated`; `data`,
/// `sources[]`, `pages`, `pages_live`, `repeat`, `live_spread`, `latency_tolerance`,
/// `tco_tolerance`, `fit`, `composed_error`, `failed[]`, `loadavg_before`, `loadavg_after`,
/// `seconds_total`, `date`; the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct CharacterizeArgs {
    /// Pages of this file, cut every 4 KiB
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub data: Option<PathBuf>,
    /// Private anonymous pages of this process, read while it runs
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Only these tiers: names, or parts of names such as lz4 or zsmalloc+dram
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub tiers: Vec<String>,
    /// Media besides DRAM and `slow`, prices, and tiers at other levels
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Pages to use, evenly sampled
    #[arg(long, default_value_t = 16_384,
          value_parser = clap::value_parser!(u32).range(1..=(1 << 20)))]
    pub pages: u32,
    /// How often each tier is measured, in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Which tiers to measure with real faults
    #[arg(long, value_enum, default_value_t = Which::Contenders)]
    pub live: Which,
    /// Write results as JSON to this file
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Draw cost against latency: a picture (.svg), or a page with the table (.html)
    #[arg(long, value_name = "PATH")]
    pub plot: Option<PathBuf>,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
    /// Make the recommended tiers those of the preset `auto` on this machine
    #[arg(long)]
    pub save: bool,
}

/// One tier and all that was measured of it.
struct Candidate {
    spec: TierSpec,
    /// Its place among the encodings.
    encoded: usize,
    once: Vec<Once>,
    live: Live,
    /// Whether a live measurement failed; it is not tried again.
    failed: bool,
}

/// Runs the command.
pub fn run(args: CharacterizeArgs) -> Result<()> {
    let started = Instant::now();
    args.check()?;
    let (tiers, dram) = args.tiers()?;
    if !uffd_probe::userfaultfd_access().is_usable() {
        bail!(
            "userfaultfd cannot be used here, so no fault can be measured; `terrace doctor` says \
             why and what mends it"
        );
    }
    let loadavg_before = loadavg();
    let mut progress = Progress::new();
    crate::demo::sys::catch_interrupts();
    let wanted = usize::try_from(args.pages)?;
    let data = match (&args.data, args.pid) {
        (Some(path), _) => Data::of_file(path, wanted)?,
        (None, Some(pid)) => Data::of_process(pid, wanted)?,
        (None, None) => heaps::make(wanted, &mut progress)?,
    };
    crate::demo::sys::stop_if_interrupted()?;
    catch_interrupts();
    progress.line(&format!("pages of {}", data.description()));

    let (pages, dictionaries) = train(&tiers, &data.pages);
    let mut work = Work::new(tiers, &pages, &dictionaries, args.repeat)?;
    work.in_process(&dram, &mut progress)?;
    let report = Report {
        tiers: Vec::new(),
        recommended: Vec::new(),
        recommended_with_emulated: Vec::new(),
        data: data.description(),
        sources: data.sources.clone(),
        pages: pages.len(),
        dictionary_bytes: dictionaries.newest().map_or(0, |d| d.content().len()),
        pages_live: work.pages_live,
        repeat: args.repeat,
        live_spread: None,
        latency_tolerance: LATENCY_TOLERANCE,
        tco_tolerance: TCO_TOLERANCE,
        fit: None,
        composed_error: None,
        failed: Vec::new(),
        loadavg_before,
        loadavg_after: loadavg_before,
        seconds_total: 0.0,
        date: crate::demo::machine::Machine::here().date,
        machine: Machine::here(),
    };
    let mut report = work.live(report, &dram, args.live, &mut progress)?;
    report.judge();
    report.loadavg_after = loadavg();
    report.seconds_total = started.elapsed().as_secs_f64();
    drop(progress);
    args.hand_out(&report, &work, &dram)
}

impl CharacterizeArgs {
    /// What can be known to be wrong before minutes have passed.
    fn check(&self) -> Result<()> {
        if let Some(path) = &self.plot {
            let kind = path.extension().and_then(|e| e.to_str()).unwrap_or("");
            ensure!(
                ["svg", "html"].contains(&kind),
                "--plot: {} is neither .svg nor .html; name the file so",
                path.display()
            );
        }
        for (option, path) in [("--json", &self.json), ("--plot", &self.plot)] {
            path.as_ref().map_or(Ok(()), |path| output::check(option, path))?;
        }
        Ok(())
    }

    /// The tiers to measure, and DRAM.
    fn tiers(&self) -> Result<(Vec<TierSpec>, Medium)> {
        let config = match &self.config {
            Some(path) => Config::load(path)?,
            None => Config::from_preset(preset::Preset::Auto),
        };
        let all = all_tiers(&config);
        let chosen = match self.tiers.as_slice() {
            [] => all,
            patterns => {
                for pattern in patterns {
                    let matches = all.iter().any(|t| is_meant(&t.name, pattern));
                    let names: Vec<&str> = all.iter().map(|t| t.name.as_str()).collect();
                    ensure!(
                        matches,
                        "--tiers: {pattern:?} is no tier and no part of one; there are {}",
                        names.join(", ")
                    );
                }
                let names: Vec<String> = all.iter().map(|t| t.name.clone()).collect();
                let meant = |t: &TierSpec, p: &String| match names.contains(p) {
                    true => t.name == *p,
                    false => is_meant(&t.name, p),
                };
                all.into_iter().filter(|t| patterns.iter().any(|p| meant(t, p))).collect()
            }
        };
        Ok((chosen, config.dram().clone()))
    }

    /// Prints, writes and saves what was asked for.
    fn hand_out(&self, report: &Report, work: &Work, dram: &Medium) -> Result<()> {
        if self.markdown {
            print!("{}", report.markdown());
        } else {
            print!("{}", report.table());
        }
        let write = |path: &Path, text: String| {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(path) = &self.json {
            write(path, serde_json::to_string_pretty(report)? + "\n")?;
        }
        if let Some(path) = &self.plot {
            let is_page = path.extension().is_some_and(|e| e == "html");
            write(path, if is_page { plot::html(report) } else { plot::svg(report) })?;
        }
        if self.save {
            let path = saved::path().context("--save: neither XDG_STATE_HOME nor HOME is set")?;
            let spec = |name: &String| work.tiers.iter().find(|t| t.spec.name == *name);
            let tiers: Vec<TierSpec> =
                report.recommended.iter().filter_map(|n| Some(spec(n)?.spec.clone())).collect();
            let notes = saved::notes(&report.date, &report.data);
            let text = saved::text(&tiers, dram, &report.machine, &notes).context("--save")?;
            saved::save(&path, &text)?;
            say!(
                "terrace: the preset auto has these {} tiers now: {}; remove {} for the built-in \
                 ones",
                tiers.len(),
                report.recommended.join(", "),
                path.display()
            );
        }
        Ok(())
    }
}

/// Every codec over every pool on every medium of a configuration and on `slow`, blocks in the
/// densest pool, and the configuration's own tiers.
fn all_tiers(config: &Config) -> Vec<TierSpec> {
    let mut media = config.media.clone();
    if !media.iter().any(|m| m.kind == MediumKind::Emulated || m.name == "slow") {
        media.push(preset::slow(config.dram().usd_per_gib_month));
    }
    let mut all: Vec<TierSpec> = Vec::new();
    for medium in &media {
        for pool in Pool::ALL {
            all.extend(Codec::ALL.map(|codec| TierSpec::new(pool, codec, medium.clone())));
        }
        all.extend(BLOCKS_KIB.map(|kib| TierSpec::with_blocks(BLOCKS_IN, kib, medium.clone())));
    }
    for own in &config.tiers {
        let known = |t: &TierSpec| TierSpec { name: own.name.clone(), ..t.clone() } == *own;
        if !all.iter().any(|t| known(t) || t.name == own.name) {
            all.push(own.clone());
        }
    }
    all
}

/// Pages to measure with, and the dictionary that the rest gave, if a codec wants one and it pays:
/// what a runtime has seen when it trains is not what it stores later.
fn train(tiers: &[TierSpec], all: &[Page]) -> (Vec<Page>, Arc<Dictionaries>) {
    let dictionaries = Dictionaries::new();
    if !tiers.iter().any(|t| t.codec.uses_dictionary()) {
        return (all.to_vec(), dictionaries);
    }
    let every = (all.len() / TRAINING_PAGES).max(TRAINING_SHARE);
    let is_for_training = |n: usize| n % every == every / 2;
    let of = |wanted: bool| {
        let both = all.iter().enumerate();
        both.filter(move |(n, _)| is_for_training(*n) == wanted).map(|(_, page)| page)
    };
    let list: Vec<(Codec, i32)> = tiers.iter().map(|t| (t.codec, t.level)).collect();
    dictionaries.improve(&list, &of(true).collect::<Vec<_>>());
    (of(false).copied().collect(), dictionaries)
}

/// Whether a tier is meant by a name, or by some of the parts that `+` joins.
fn is_meant(name: &str, pattern: &str) -> bool {
    let has = |part: &str| name.split('+').any(|p| p == part);
    name == pattern || pattern.split('+').all(has)
}

/// All tiers with the pages and what was measured so far.
struct Work<'a> {
    tiers: Vec<Candidate>,
    encoded: Vec<Encoded>,
    pages: &'a [Page],
    pages_live: usize,
    repeat: u32,
}

impl<'a> Work<'a> {
    fn new(
        specs: Vec<TierSpec>,
        pages: &'a [Page],
        dictionaries: &Arc<Dictionaries>,
        repeat: u32,
    ) -> Result<Work<'a>> {
        let pages_live = pages.len().max(PAGES_MIN as usize);
        let mut work = Work { tiers: Vec::new(), encoded: Vec::new(), pages, pages_live, repeat };
        for spec in specs {
            let same = |e: &Encoded| (e.codec, e.level) == (spec.codec, spec.level);
            let encoded = match work.encoded.iter().position(same) {
                Some(n) => n,
                None => {
                    work.encoded.push(Encoded::new(spec.codec, spec.level, pages, dictionaries)?);
                    work.encoded.len() - 1
                }
            };
            let (once, live) = (Vec::new(), Live::default());
            work.tiers.push(Candidate { spec, encoded, once, live, failed: false });
        }
        Ok(work)
    }

    /// Stores and loads in this process, each tier once in each round, so that drift of the machine
    /// meets all alike.
    fn in_process(&mut self, dram: &Medium, progress: &mut Progress) -> Result<()> {
        for round in 0..self.repeat {
            if round > 0 {
                self.encoded.iter_mut().try_for_each(|e| e.again(self.pages))?;
            }
            for (n, tier) in self.tiers.iter_mut().enumerate() {
                ensure!(!interrupted(), "interrupted");
                let (name, done) = (&tier.spec.name, n + round as usize);
                progress.update(|| format!("[{}/{}] in process: {name}", round + 1, self.repeat));
                let encoded = &self.encoded[tier.encoded];
                let seed = done as u64 + 1;
                let usd = dram.usd_per_gib_month;
                tier.once.push(in_process::measure(&tier.spec, encoded, self.pages, seed, usd)?);
            }
        }
        Ok(())
    }

    /// Measures with real faults what `which` says, and what turns out to be on a frontier; then
    /// composes the others.
    fn live(
        &mut self,
        mut report: Report,
        dram: &Medium,
        which: Which,
        progress: &mut Progress,
    ) -> Result<Report> {
        let folder = TempDir::new("tiers")?;
        let subject = Subject {
            exe: std::env::current_exe().context("cannot find this program itself")?,
            folder: folder.path().to_path_buf(),
            content: PathBuf::new(),
            pages: self.pages_live,
        };
        let mut next = match which {
            Which::All => (0..self.tiers.len()).collect(),
            Which::Contenders => self.extremes(dram),
        };
        for round in 0..=ROUNDS_MAX {
            next.retain(|&n| self.can_be_live(n, dram));
            if round > 0 && next.is_empty() {
                break;
            }
            self.measure_live(&next, &subject, &mut report.failed, progress)?;
            self.fill_in(&mut report, dram);
            let margin = if round == 0 { CONTENDER_MARGIN } else { 0.0 };
            next = report.contenders(margin);
        }
        Ok(report)
    }

    /// The fastest and the slowest to load of those that can be measured live, for the fit.
    fn extremes(&self, dram: &Medium) -> Vec<usize> {
        let mut of: Vec<(usize, f64)> = (0..self.tiers.len())
            .filter(|&n| self.can_be_live(n, dram))
            .filter_map(|n| Some((n, self.tiers[n].load()?.p50_ns)))
            .collect();
        of.sort_by(|a, b| a.1.total_cmp(&b.1));
        let unknown = (0..self.tiers.len()).filter(|&n| self.tiers[n].load().is_none());
        let ends = [of.first(), of.get(of.len() / 2), of.last()].into_iter().flatten();
        let mut ends: Vec<usize> = ends.map(|(n, _)| *n).chain(unknown).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn can_be_live(&self, n: usize, dram: &Medium) -> bool {
        let tier = &self.tiers[n];
        let Some(once) = tier.once.last() else { return false };
        let price = tier.spec.medium.usd_per_gib_month / dram.usd_per_gib_month;
        let saves = once.sizes.ratio() * price < LIVE_COST_MAX;
        let pages = self.encoded[tier.encoded].surely_taken().next().is_some();
        // A runtime trains no dictionary from as little as a live measurement has.
        let trains = tier.spec.codec.uses_dictionary();
        saves && pages && !trains && !tier.failed && tier.live.times().is_none()
    }

    /// Measures these tiers, one after the other and all of it again.
    fn measure_live(
        &mut self,
        places: &[usize],
        subject: &Subject,
        failed: &mut Vec<String>,
        progress: &mut Progress,
    ) -> Result<()> {
        for round in 1..=self.repeat {
            for (done, &n) in places.iter().enumerate() {
                if self.tiers[n].failed {
                    continue;
                }
                let name = &self.tiers[n].spec.name;
                let (repeat, all) = (self.repeat, places.len());
                progress.update(|| {
                    format!("[{round}/{repeat}] real faults, tier {} of {all}: {name}", done + 1)
                });
                match self.measure_once(n, subject, u64::from(round)) {
                    Ok(measured) => self.tiers[n].live.add(&measured),
                    // The child got the Ctrl-C as well; that it ended is not what went wrong.
                    Err(_) if interrupted() => bail!("interrupted"),
                    Err(e) => {
                        let why = format!("{}: {e:#}", self.tiers[n].spec.name);
                        progress.line(&format!("terrace: not measured live: {why}"));
                        failed.push(why);
                        self.tiers[n].failed = true;
                        self.tiers[n].live = Live::default();
                    }
                }
            }
        }
        Ok(())
    }

    fn measure_once(&self, n: usize, subject: &Subject, seed: u64) -> Result<Measured> {
        let tier = &self.tiers[n];
        let content = subject.folder.join(format!("content-{}", tier.encoded));
        if !content.exists() {
            // Only what the tier takes: a page that stays in memory is no fault.
            let mut bytes = Vec::with_capacity(self.pages.len() * PAGE_SIZE);
            for n in self.encoded[tier.encoded].surely_taken() {
                bytes.extend_from_slice(&self.pages[n]);
            }
            fs::write(&content, bytes).context("cannot write the pages")?;
        }
        let subject = Subject {
            exe: subject.exe.clone(),
            folder: subject.folder.clone(),
            content,
            pages: subject.pages,
        };
        let measured = subject.measure_at_rest(&tier.spec, seed)?;
        let wrong = measured.figures.wrong_pages;
        ensure!(wrong == 0, "{wrong} pages came back with other bytes");
        Ok(measured)
    }

    /// Fits, composes, and writes all that is known into the rows of the report.
    fn fill_in(&self, report: &mut Report, dram: &Medium) {
        let both: Vec<(Times, Times)> =
            self.tiers.iter().filter_map(|t| Some((t.load()?, t.live.times()?))).collect();
        let fit = Fit::of(&both);
        report.fit = fit.map(|f| FitFigures { overhead_ns: f.overhead_ns, factor: f.factor });
        let errors: Vec<f64> = left_out_errors(&both).into_iter().map(f64::abs).collect();
        report.composed_error = median(errors.clone()).map(|median| ComposedError {
            tiers: errors.len(),
            median,
            worst: errors.iter().copied().fold(0.0, f64::max),
        });
        report.live_spread = median(self.tiers.iter().filter_map(|t| t.live.spread()).collect());
        report.tiers = self.tiers.iter().map(|t| t.row(fit, dram)).collect();
    }
}

impl Candidate {
    /// The least of the repetitions, which is the one that others disturbed least; `None` on a
    /// medium that only the runtime opens.
    fn load(&self) -> Option<Times> {
        self.once.iter().filter_map(|o| o.load).reduce(Times::least)
    }

    fn row(&self, fit: Option<Fit>, dram: &Medium) -> Row {
        let mut row = Row::new(&self.spec);
        if let Some(once) = self.once.last() {
            let sizes = once.sizes;
            row.codec_ratio = sizes.codec_ratio();
            row.ratio = sizes.ratio();
            row.pool_overhead = sizes.pool_overhead();
            row.refused_share = sizes.refused_share();
            row.tco_normalized =
                sizes.tco(self.spec.medium.usd_per_gib_month, dram.usd_per_gib_month);
        }
        row.compress_ns_p50 = self.once.iter().map(|o| o.compress_ns_p50).min().unwrap_or(0);
        row.load_p50_ns = self.load().map(|t| t.p50_ns as u64);
        let fitted = fit.zip(self.load()).map(|(fit, load)| fit.compose(load));
        row.fault_fitted_ns = fitted.map(|t| t.p50_ns as u64);
        let live = self.live.times().map(|t| (How::Live, t));
        let times = live.or(fitted.map(|t| (How::Composed, t)));
        if let Some((how, times)) = times {
            row.measured = how;
            row.fault_p50_ns = Some(times.p50_ns as u64);
            row.fault_p99_ns = Some(times.p99_ns as u64);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::preset::Preset;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        args: CharacterizeArgs,
    }

    fn args(line: &str) -> Result<CharacterizeArgs, String> {
        let words = ["characterize"].into_iter().chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|c| c.args).map_err(|e| e.to_string())
    }

    #[test]
    fn every_combination_is_a_tier_once() {
        let all = all_tiers(&Config::from_preset(Preset::Auto));
        let each = Codec::ALL.len() * Pool::ALL.len() + BLOCKS_KIB.len();
        assert_eq!(all.len(), each * 2);
        let names: std::collections::BTreeSet<_> = all.iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), all.len());
        for preset in Preset::ALL {
            assert!(preset.tiers().iter().all(|t| all.contains(t)));
        }
    }

    #[test]
    fn a_file_adds_media_and_levels() {
        let text = "[[medium]]\nname = \"far\"\nkind = \"emulated\"\nusd_per_gib_month = 0.1\n\
                    latency_ns = 900\nbandwidth_mib_s = 0\n[[tier]]\ncodec = \"zstd\"\nlevel = -1\n\
                    pool = \"zsmalloc\"\nmedium = \"far\"\n[[tier]]\ncodec = \"lz4\"\n\
                    pool = \"zbud\"\nmedium = \"dram\"\nname = \"quick\"\n";
        let config = file::parse("t", text, Preset::Auto).unwrap();
        let all = all_tiers(&config);
        let each = Codec::ALL.len() * Pool::ALL.len() + BLOCKS_KIB.len();
        assert_eq!(all.len(), each * 2 + 1, "dram, far, and one level more; quick is one of them");
        assert!(all.iter().any(|t| t.name == "zsmalloc+zstd-1+far"));
        assert!(!all.iter().any(|t| t.medium.name == "slow"), "an emulated one is there already");
    }

    #[test]
    fn names_and_parts_of_names_choose() {
        let chosen = |line: &str| {
            let (tiers, _) = args(line).unwrap().tiers()?;
            Ok::<_, anyhow::Error>(tiers.into_iter().map(|t| t.name).collect::<Vec<_>>())
        };
        let two = ["zbud+lz4+dram", "zsmalloc+zstd+slow"];
        assert_eq!(chosen("--tiers zbud+lz4+dram,zsmalloc+zstd+slow").unwrap(), two);
        assert_eq!(chosen("--tiers lz4+dram").unwrap().len(), Pool::ALL.len());
        assert!(chosen("--tiers lz4").unwrap().iter().all(|n| n.contains("+lz4+")));
        let error = chosen("--tiers zbud,lz5").unwrap_err().to_string();
        assert!(
            error.starts_with("--tiers: \"lz5\" is no tier") && error.contains("zbud+lz4+dram")
        );
    }

    #[test]
    fn impossible_values_are_refused_before_anything_is_measured() {
        for line in ["--pages 0", "--repeat 0", "--pid x", "--pid 1 --data f", "--live some"] {
            assert!(args(line).is_err(), "{line}");
        }
        for (line, said) in [
            ("--plot plot.png", "neither .svg nor .html"),
            ("--plot plot", "neither .svg nor .html"),
            ("--json /nowhere/at/all.json", "--json: there is no folder /nowhere/at"),
            ("--plot /nowhere/at/all.svg", "--plot: there is no folder"),
        ] {
            let error = args(line).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
        assert!(args("--json a.json --plot b.html --save --markdown").unwrap().check().is_ok());
    }
}
