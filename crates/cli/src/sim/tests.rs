use super::*;
use crate::config::PolicyKind;
use generate::{generate, Kind, Size};

fn trace(kind: Kind, windows: u32) -> Trace {
    let size = Size { regions: 60, windows, threads: 1, seed: 5 };
    generate(kind, size, &Config::from_preset(Preset::Auto))
}

fn args(path: &Path) -> SimArgs {
    SimArgs {
        traces: vec![path.to_owned()],
        policies: PolicyArgs::default(),
        tiers: None,
        usd_per_core_month: None,
        cooling_windows: None,
        seed: 1,
        oracle: true,
        bar: true,
        sample: 1,
        warm_up: None,
        json: None,
        generate: None,
        regions: 0,
        windows: 0,
        threads: 1,
        window: 5.0,
        merge: false,
        out: None,
    }
}

fn with_file<T>(name: &str, mut trace: Trace, run: impl FnOnce(&Path) -> T) -> T {
    let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
    save(&mut trace, &path).expect("saved");
    let result = run(&path);
    let _ = std::fs::remove_file(&path);
    result
}

#[test]
fn a_simulation_is_the_same_each_time_and_below_the_oracle() {
    with_file("sim-same", trace(Kind::Zipf, 60), |path| {
        let first = simulate(&args(path), path).expect("simulated");
        let again = simulate(&args(path), path).expect("simulated");
        assert_eq!(first.policies, again.policies);
        assert_eq!(first.bar, again.bar);
        assert_eq!(first.policies.len(), 13);
        assert_eq!(first.live, None);
        for policy in &first.policies {
            let bound = policy.oracle_bound.expect("asked for");
            assert!(policy.tco_saved <= bound + 1e-9, "{policy:?}");
            if let Some(found) = policy.oracle_tco_saved {
                assert!(found <= bound + 1e-9, "{policy:?}");
            }
            if let Some(unmoved) = policy.unmoved_tco_saved {
                assert!(unmoved <= bound + 1e-9, "{policy:?}");
            }
        }
        let saved = |name: &str| {
            let of = first.policies.iter().find(|p| p.name == name).map(|p| p.tco_saved);
            of.unwrap_or_else(|| panic!("{name}"))
        };
        // Of a stationary load that saves much the right place is nearly all there is to know.
        let of_most = |p: &&PolicyResult| p.oracle_tco_saved > Some(0.5);
        let most = first.policies.iter().find(of_most).expect("a policy that saves much");
        assert!(most.unmoved_tco_saved > most.oracle_tco_saved.map(|s| 0.97 * s), "{most:?}");
        assert!(saved("analytical 0.10") > saved("analytical 0.90") + 0.1);
        assert!(saved("slowdown 5 %") > 0.2);
        let table = first.table();
        assert!(table.contains("slowdown 5 %") && table.contains("best fixed alpha"), "{table}");
    });
}

#[test]
fn one_process_after_the_other_is_planned_for_by_itself() {
    with_file("sim-storm", trace(Kind::ForkStorm, 60), |path| {
        let report = simulate(&args(path), path).expect("simulated");
        assert_eq!(report.processes, 1 + 2 * 8);
    });
}

#[test]
fn windows_of_warming_up_do_not_count() {
    with_file("sim-warm", trace(Kind::Zipf, 60), |path| {
        let with = |warm_up| simulate(&SimArgs { warm_up, ..args(path) }, path);
        let usual = with(None).expect("simulated");
        assert_eq!(usual.policies, with(Some(10)).expect("simulated").policies);
        // All is in memory at first.
        let slowdown = |report: &Report| {
            let of = |p: &&PolicyResult| p.name == "slowdown 5 %";
            report.policies.iter().find(of).expect("one of all").tco_saved
        };
        let (all, late) = (with(Some(0)).expect("simulated"), with(Some(59)).expect("simulated"));
        assert!(slowdown(&all) < slowdown(&usual) && slowdown(&usual) < slowdown(&late));
        let why = with(Some(60)).expect_err("nothing is left").to_string();
        assert!(why.contains("--warm-up leaves nothing that counts"), "{why}");
    });
}

#[test]
fn a_sample_is_about_the_whole() {
    with_file("sim-sample", trace(Kind::Phase, 120), |path| {
        let whole = simulate(&args(path), path).expect("simulated");
        let half = simulate(&SimArgs { sample: 2, ..args(path) }, path).expect("simulated");
        assert!(half.regions < 45 && half.regions > 15, "{}", half.regions);
        for (a, b) in whole.policies.iter().zip(&half.policies) {
            assert!((a.tco_saved - b.tco_saved).abs() < 0.1, "{a:?} {b:?}");
        }
        let none = simulate(&SimArgs { sample: 1 << 40, ..args(path) }, path);
        let why = none.expect_err("no region is left").to_string();
        assert!(why.starts_with("--sample: one in 1099511627776 leaves none of 60 "), "{why}");
    });
}

#[test]
fn a_trace_shorter_than_the_warm_up_of_cold_age_is_said_to_be() {
    let of = |path: &Path, kind| {
        let policies = PolicyArgs { policy: vec![kind], ..PolicyArgs::default() };
        let report = simulate(&SimArgs { policies, bar: false, ..args(path) }, path);
        let report = report.expect("simulated");
        let said = report.table().contains("cold-age: still warming up when the trace ended");
        let [policy] = &report.policies[..] else { panic!("{report:?}") };
        assert_eq!(policy.is_warming_up, said);
        (policy.clone(), said)
    };
    // Ten minutes are 120 windows.
    with_file("sim-cold", trace(Kind::Zipf, 60), |path| {
        let (policy, said) = of(path, PolicyKind::ColdAge);
        assert!(said && policy.of_oracle.is_none() && policy.moves == 0, "{policy:?}");
        assert!(!of(path, PolicyKind::Waterfall).1);
    });
    with_file("sim-cold-long", trace(Kind::Zipf, 125), |path| {
        let (policy, said) = of(path, PolicyKind::ColdAge);
        assert!(!said, "{policy:?}");
    });
}

#[test]
fn other_tiers_save_otherwise() {
    with_file("sim-tiers", trace(Kind::Zipf, 60), |path| {
        let own = simulate(&args(path), path).expect("simulated");
        let tiers = Some("tierscape".into());
        let other = simulate(&SimArgs { tiers, ..args(path) }, path).expect("simulated");
        assert_eq!(other.tiers.len(), 6);
        assert!(other.policies[0].tco_saved > own.policies[0].tco_saved + 0.05);
        let wrong = SimArgs { tiers: Some("/nowhere".into()), ..args(path) };
        let why = simulate(&wrong, path).expect_err("no such tiers").to_string();
        assert!(why.contains("neither a preset"), "{why}");
    });
}

#[test]
fn where_a_core_is_dear_little_is_worth_moving() {
    with_file("sim-core", trace(Kind::Zipf, 40), |path| {
        let at = |usd_per_core_month| {
            let slowdown = PolicyArgs { max_slowdown: vec!["5%".into()], ..PolicyArgs::default() };
            let plain = SimArgs { oracle: false, bar: false, ..args(path) };
            let args = SimArgs { policies: slowdown, usd_per_core_month, ..plain };
            simulate(&args, path).map(|report| report.policies[0].clone())
        };
        let [usual, dear] = [at(None).expect("simulated"), at(Some(10_000.0)).expect("simulated")];
        assert!(usual.moves > 0 && usual.cpu_tax > 0.0, "{usual:?}");
        assert_eq!((dear.moves, dear.cpu_tax), (0, 0.0));
        let refused = at(Some(-1.0)).expect_err("a price").to_string();
        assert!(refused.contains("--usd-per-core-month"), "{refused}");
    });
}

#[test]
fn merged_traces_have_all_processes_under_names_of_their_own() {
    let (a, b) = (trace(Kind::Zipf, 20), trace(Kind::ForkStorm, 30));
    let rows = a.batch.rows.len() + b.batch.rows.len();
    let of_b = b.batch.processes.keys().map(|k| k.0).collect::<BTreeSet<_>>().len();
    let all = merge(vec![a, b]).expect("merged");
    assert_eq!(all.batch.rows.len(), rows);
    let pids: BTreeSet<u32> = all.batch.processes.keys().map(|key| key.0).collect();
    assert_eq!(pids.len(), 1 + of_b);
    assert_eq!(all.meta.commands.iter().map(|c| c.pid).collect::<BTreeSet<_>>(), pids);
    assert_eq!(all.meta.source, "merged");
    for row in &all.batch.rows {
        assert!(all.batch.processes.contains_key(&(row.pid, row.window)));
    }
    let mut other = trace(Kind::Zipf, 5);
    other.meta.tiers.pop();
    let why = merge(vec![trace(Kind::Zipf, 5), other]).expect_err("other tiers").to_string();
    assert!(why.contains("different tiers"), "{why}");
}
