//! Reports and promises from runs that are made up.

use super::record::{Cpu, Load, Memory, Record, RunId, Settings, Tier, Window};
use super::statistics::Verdict;
use super::summary::{summarise, WorkloadSummary};
use super::{chosen_workloads, markdown, report, schedule, PaperArgs, WORKLOADS};
use crate::demo::redis::TempDir;
use clap::Parser;

fn settings() -> Settings {
    Settings { size_mib: 512, seconds: 10.0, warmup_s: 4.0, window_s: 1.0, ..Settings::default() }
}

/// A run with this throughput, cost and tail. DRAM does 100 ops/s for 1 USD at 1000 us.
fn run(id: RunId, ops_per_s: f64, usd: f64, p99_us: f64) -> Record {
    let memory = (0..14)
        .map(|second| Memory {
            t_s: f64::from(second),
            is_measured: second >= 4,
            rss_bytes: 1 << 29,
            usd_per_month: usd,
            ..Memory::default()
        })
        .collect();
    let tier = |name: &str, pages| Tier {
        name: name.into(),
        pages,
        recommended_pages: pages + 7,
        faults: 10,
        ..Tier::default()
    };
    let windows = (1..=14)
        .map(|n| Window {
            t_s: f64::from(n),
            tiers: vec![tier("dram", 1000), tier("zsmalloc+lzo+<dram>", 500)],
            ..Window::default()
        })
        .collect();
    Record {
        id,
        settings: settings(),
        load: Load {
            ops: ops_per_s * 10.0,
            seconds: 10.0,
            ops_per_s,
            mean_us: 1e5 / ops_per_s,
            p50_us: 100.0,
            p99_us,
            p999_us: p99_us * 2.0,
            wrong: 0,
            beside: None,
        },
        memory,
        windows,
        cpu: Cpu { application_s: 10.0, runtime_s: 0.5, fault_service_s: 0.3, planner_s: 0.1 },
        ..Record::default()
    }
}

/// Slowdown, saved and tail of each configuration; everything wavers by half a per cent.
fn series(workload: &str, rounds: usize, what: &[(&str, f64, f64, f64)]) -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..rounds {
        let mut position = 0;
        let mut add = |config: &str, slowdown: f64, saved: f64, tail: f64| {
            let waver = 1.0 + 0.005 * f64::from((round + position) as u32 % 2);
            // The machine is slower in every other round, DRAM and all.
            let machine = if round % 2 == 0 { 1.0 } else { 0.7 };
            let id = RunId { workload: workload.into(), config: config.into(), round, position };
            let ops = 100.0 * machine * waver / (1.0 + slowdown);
            records.push(run(id, ops, 1.0 - saved, 1000.0 * tail / machine));
            position += 1;
        };
        add(schedule::DRAM, 0.0, 0.0, 1.0);
        for &(config, slowdown, saved, tail) in what {
            add(config, slowdown, saved, tail);
        }
        add(schedule::DRAM, 0.0, 0.0, 1.0);
    }
    records
}

fn one(records: &[Record]) -> WorkloadSummary {
    let mut all = summarise(records);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn verdict(w: &WorkloadSummary, what: &str) -> Verdict {
    let bar = w.bars.iter().find(|b| b.what.contains(what));
    bar.unwrap_or_else(|| panic!("no promise about {what}: {:?}", w.bars)).verdict
}

/// The paper's own figures for Redis, about.
const AS_THE_PAPER: &[(&str, f64, f64, f64)] = &[
    ("2t-c", 0.05, 0.10, 2.0),
    ("2t-m", 0.10, 0.20, 3.0),
    ("2t-a", 0.20, 0.34, 4.0),
    ("6t-wf-c", 0.04, 0.20, 1.5),
    ("6t-wf-m", 0.09, 0.40, 2.0),
    ("6t-wf-a", 0.19, 0.56, 3.0),
    ("6t-am-0.9", 0.01, 0.15, 1.2),
    ("6t-am-0.5", 0.05, 0.45, 1.5),
    ("6t-am-0.1", 0.14, 0.64, 2.5),
];

#[test]
fn a_server_is_compared_with_the_one_that_took_turns_with_it() {
    let mut records = series("redis", 5, &[("2t-a", 0.2, 0.3, 2.0)]);
    // The machine wavers by a factor of two from run to run, and both servers with it.
    for (n, r) in records.iter_mut().enumerate() {
        let machine = [1.0, 0.5, 0.8, 0.6][n % 4];
        let load = &mut r.load;
        let beside = run(r.id.clone(), 100.0 * machine, 1.0, 1000.0 / machine).load;
        load.ops_per_s *= machine;
        for us in [&mut load.mean_us, &mut load.p50_us, &mut load.p99_us, &mut load.p999_us] {
            *us /= machine;
        }
        load.beside = Some(Box::new(beside));
    }
    let w = one(&records);
    let config = &w.configs[0];
    assert!((config.slowdown - 0.2).abs() < 0.01 && w.noise.throughput < 0.01, "{config:?}");
    assert!((config.p99_ratio - 2.0).abs() < 0.02 && !config.undecided, "{config:?}");
    // Without the other, equal runs differ by more than there is to see.
    records.iter_mut().for_each(|r| r.load.beside = None);
    assert!(one(&records).noise.throughput > 0.2);
}

#[test]
fn figures_as_the_papers_meet_every_promise() {
    let w = one(&series("redis", 5, AS_THE_PAPER));
    for bar in &w.bars {
        assert_eq!(bar.verdict, Verdict::Met, "{bar:?}");
    }
    assert_eq!((w.rounds, w.bars.len(), w.dram.runs), (5, 5, 10));
    let am = w.configs.iter().find(|c| c.name == "6t-am-0.1").unwrap();
    // A machine that is slower every other round changes neither ratio.
    assert!((am.slowdown - 0.14).abs() < 0.01 && (am.tco_saved - 0.64).abs() < 1e-9, "{am:?}");
    assert!((am.p99_ratio - 2.5).abs() < 0.01 && !am.undecided);
    assert!((am.cpu_tax - 0.03).abs() < 1e-9);
    assert!((am.cpu_tax_with_faults - 0.06).abs() < 1e-9);
}

#[test]
fn a_promise_that_is_broken_is_missed() {
    // Saves no more than zswap, at the same speed, with a longer tail.
    let worse =
        [("2t-a", 0.20, 0.34, 2.0), ("6t-am-0.1", 0.20, 0.35, 3.0), ("6t-wf-a", 0.5, 0.7, 9.0)];
    let w = one(&series("redis", 5, &worse));
    assert_eq!(verdict(&w, "more saved"), Verdict::Missed);
    assert_eq!(verdict(&w, "less slowdown"), Verdict::Missed);
    assert_eq!(verdict(&w, "p99"), Verdict::Missed);
    let w = one(&series("bfs", 5, &[("2t-c", 0.02, 0.10, 1.0), ("6t-wf-c", 0.10, 0.20, 1.0)]));
    assert_eq!(verdict(&w, "frontier"), Verdict::Missed);
    let w = one(&series("bfs", 5, &[("2t-c", 0.02, 0.10, 1.0), ("6t-wf-c", 0.0, 0.05, 1.0)]));
    assert_eq!(verdict(&w, "frontier"), Verdict::Missed, "nothing saves as much");
}

#[test]
fn what_one_run_says_is_undecided() {
    let w = one(&series("redis", 1, AS_THE_PAPER));
    assert!(w.bars.iter().all(|b| b.verdict == Verdict::Undecided), "{:?}", w.bars);
    assert!(w.configs.iter().all(|c| c.undecided));
    // Not even that nothing saves as much, or is as quick.
    for workload in ["redis", "bfs"] {
        let w = one(&series(workload, 1, &[("2t-c", 0.0, 0.3, 1.0), ("6t-wf-c", 0.1, 0.2, 2.0)]));
        assert!(w.bars.iter().all(|b| b.verdict == Verdict::Undecided), "{:?}", w.bars);
        let w = one(&series(workload, 1, &[("2t-a", 0.0, 0.3, 1.0), ("6t-wf-a", 0.1, 0.2, 2.0)]));
        assert!(w.bars.iter().all(|b| b.verdict == Verdict::Undecided), "{:?}", w.bars);
    }
}

#[test]
fn what_is_smaller_than_the_noise_is_undecided() {
    let mut records = series("redis", 5, &[("2t-a", 0.10, 0.30, 2.0), ("best-5", 0.03, 0.55, 1.5)]);
    let before = one(&records);
    assert!(!before.configs[1].undecided);
    assert_eq!(verdict(&before, "less slowdown"), Verdict::Met);
    // Now plain runs differ by a fifth.
    for r in records.iter_mut().filter(|r| r.id.config == schedule::DRAM && r.id.position > 0) {
        r.load.ops_per_s *= 1.2;
    }
    let after = one(&records);
    assert!((after.noise.throughput - 0.2).abs() < 0.02, "{:?}", after.noise);
    assert!(after.configs.iter().all(|c| c.undecided));
    assert_eq!(verdict(&after, "less slowdown"), Verdict::Undecided);
}

#[test]
fn nothing_is_promised_of_what_was_not_run() {
    let w = one(&series("memcached", 2, &[("6t-am-0.5", 0.1, 0.3, 1.0)]));
    assert_eq!(verdict(&w, "more saved"), Verdict::Undecided);
    assert_eq!(verdict(&w, "p99"), Verdict::Undecided);
    assert!(w.bars.iter().any(|b| b.measured.contains("not measured")));
}

#[test]
fn reports_show_every_figure() {
    let mut records = series("redis", 5, AS_THE_PAPER);
    records.extend(series("bfs", 2, &[("2t-m", 0.02, 0.10, 1.0)]));
    let workloads = summarise(&records);
    let environment = serde_json::json!({"machine": "a <machine>", "kernel": "6.18"});
    let skipped = ["analytics: no duckdb".to_owned()];
    let html = report::render(&workloads, &records, &settings(), &environment, &skipped);
    for figure in ["Figure 8", "Figures 9 and 10", "Figure 11", "Figure 12", "Figure 13"] {
        assert_eq!(html.matches(figure).count(), 2, "{figure}");
    }
    assert!(html.contains("a &lt;machine&gt;") && html.contains("zsmalloc+lzo+&lt;dram&gt;"));
    for text in ["NaN", "='inf", ">inf", " inf ", "src=", "href="] {
        assert!(!html.contains(text), "{text}");
    }
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    let picture = report::picture(&workloads[0], &settings());
    assert!(picture.starts_with("<svg xmlns=") && picture.contains(", 5 rounds</text>"));
    assert!(picture.contains(">6t-am-0.1</text>") && !picture.contains("NaN"), "{picture}");
    // An interval along each axis for every configuration.
    assert_eq!(picture.matches(" thin\"").count(), 2 * workloads[0].configs.len());
    let md = markdown::render(&workloads, &settings(), &environment, &skipped);
    assert!(md.contains("(figure-8-bfs.svg)"));
    for text in ["| 6t-am-0.1 | 5 | 64.0 % |", "no duckdb", "| redis |", "## bfs", "undecided"] {
        assert!(md.contains(text), "{text} is not in\n{md}");
    }
    let json = serde_json::to_value(&workloads).unwrap();
    let config = &json[0]["configs"][0];
    for key in ["name", "tco_saved", "slowdown", "slowdown_ci", "p99_ratio", "cpu_tax", "undecided"]
    {
        assert!(!config[key].is_null(), "{key}");
    }
    assert_eq!(json[0]["bars"][0]["verdict"], "met");
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    paper: PaperArgs,
}

fn args(words: &[&str]) -> PaperArgs {
    Line::parse_from(["paper"].iter().chain(words)).paper
}

#[test]
fn what_is_asked_for_is_checked() {
    let all = args(&[]);
    let workloads = |args: &PaperArgs| chosen_workloads(&args.workloads, WORKLOADS);
    assert_eq!(workloads(&all).unwrap().len(), 6);
    assert!(all.configs().unwrap().iter().all(|c| c.name != "none"));
    let some = args(&["--workloads", "bfs,redis", "--configs", "6t-am-0.5,dram,2t-m"]);
    assert_eq!(workloads(&some).unwrap(), ["bfs", "redis"]);
    let names: Vec<&str> = some.configs().unwrap().iter().map(|c| c.name).collect();
    assert_eq!(names, ["dram", "2t-m", "6t-am-0.5"]);
    for (words, named) in [
        (&["--workloads", "chess"][..], "chess"),
        (&["--configs", "9t"], "9t"),
        (&["--size", "3"], "--size"),
        (&["--seconds", "2", "--window", "2"], "--window"),
    ] {
        let args = args(words);
        let complaint = args.settings().map(|_| ()).and_then(|()| {
            workloads(&args)?;
            args.configs().map(|_| ())
        });
        assert!(complaint.unwrap_err().to_string().contains(named), "{words:?}");
    }
    assert_eq!(args(&["--quick"]).settings().unwrap().size_mib, 128);
}

#[test]
fn a_folder_keeps_its_settings() {
    let folder = TempDir::new("paper-settings").unwrap();
    super::open_folder(folder.path(), &settings()).unwrap();
    super::open_folder(folder.path(), &settings()).unwrap();
    let other = Settings { size_mib: 1, ..settings() };
    let error = super::open_folder(folder.path(), &other).unwrap_err().to_string();
    assert!(error.contains("another --out"), "{error}");
}
