use super::*;
use terrace_core::plan::Money;

use crate::preset::Preset;
use crate::sim::costs;
use crate::trace::read::{read, Trace};
use crate::trace::record::Recorder;
use crate::trace::write::{encode, put, Batch};

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn meta() -> Meta {
    let config = Config::from_preset(Preset::Auto);
    Meta::of_run(&config, &costs::nominal(&config))
}

fn row(pid: u32, window: u32, index: u64) -> Row {
    let mut ratios = Ratios::UNKNOWN;
    if index == 1 {
        ratios.set(2, 0.25);
    }
    Row {
        pid,
        window,
        region: 0x7fff_ff00_0000_u64 + (index << 21),
        pages: 512,
        resident: 500 - window as u16,
        resident_at_open: 511,
        tier: (index % 4) as u8,
        to: index.is_multiple_of(2).then_some(3),
        samples: 4,
        hits: 3,
        faults: 12,
        touched: 12.25,
        stored_bytes: u32::MAX,
        ratios,
    }
}

fn process(window: u32) -> ProcessWindow {
    // Of the second tier nothing is said.
    let mut known = [None; MAX_TIERS];
    for tier in [1, 3] {
        let of = (tier as u32 + window) as f32;
        known[tier] = Some(KnownCost { fault_ns: 1e4 * of, ratio: 0.1 * of, move_ns: 1e3 * of });
    }
    ProcessWindow {
        time_ms: u64::from(window) * 5_000,
        running_ns: u64::MAX >> 1,
        stalled_ns: 7,
        cpu_ns: 8,
        contention: 0.5,
        moved_pages: u32::MAX,
        ahead_pages: 10,
        served_faults: 14,
        managed_bytes: 1 << 40,
        overhead_bytes: 12,
        tco_saved: -0.25,
        pool_bytes: 13,
        known,
    }
}

fn batch(windows: std::ops::Range<u32>) -> Batch {
    let mut batch = Batch::default();
    for window in windows {
        for pid in [7, 9] {
            batch.processes.insert((pid, window), process(window));
            batch.rows.extend((0..5).map(|index| row(pid, window, index)));
        }
    }
    batch
}

fn sorted(mut trace: Trace) -> Trace {
    trace.batch.rows.sort_by_key(|row| (row.pid, row.region, row.window));
    trace
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new("trace-roundtrip");
    let path = folder.0.join("trace");
    let (mut batch, meta) = (batch(1..9), meta());
    put(&path, &encode(&mut batch, &meta).expect("encoded")).expect("written");
    let trace = sorted(read(&path).expect("read"));
    assert_eq!(trace.meta, meta);
    assert_eq!(trace.batch.rows, batch.rows);
    assert_eq!(trace.batch.processes, batch.processes);
}

#[test]
fn what_is_no_trace_is_refused_with_the_reason() {
    let folder = Folder::new("trace-refused");
    let path = folder.0.join("trace");
    let why = |path: &Path| format!("{:#}", read(path).expect_err("refused"));
    assert!(why(&path).contains("cannot read"), "{}", why(&path));
    put(&path, b"PAR1 and nothing else").expect("written");
    assert!(why(&path).contains("is not a trace"), "{}", why(&path));
    let newer = Meta { format: FORMAT + 1, ..meta() };
    put(&path, &encode(&mut batch(1..2), &newer).expect("encoded")).expect("written");
    assert!(why(&path).contains("format 2, this terrace reads 1"), "{}", why(&path));
    // Cut anywhere, it is refused and never a panic.
    let whole = encode(&mut batch(1..3), &meta()).expect("encoded");
    for len in (0..whole.len()).step_by(97) {
        put(&path, &whole[..len]).expect("written");
        assert!(read(&path).is_err(), "{len} bytes of {}", whole.len());
    }
}

fn costs_now() -> Vec<TierCost> {
    let mut costs = costs::nominal(&Config::from_preset(Preset::Auto));
    costs[1].fault_ns = 4_321.0;
    costs
}

fn record(recorder: &Recorder, windows: std::ops::Range<u32>) {
    for window in windows {
        let rows = (0..5).map(|index| row(7, window, index));
        recorder.window("a program", process(window), rows, &costs_now());
    }
}

#[test]
fn a_recording_is_one_file_in_the_end() {
    let folder = Folder::new("trace-record");
    let path = folder.0.join("trace");
    let recorder = Recorder::start(&path, meta()).expect("started");
    let partial = partial_of(&path);
    assert!(Recorder::start(&path, meta()).is_err(), "two recordings of one name");
    record(&recorder, 1..4);
    // A child that never had a page in a tier, which ends last.
    let idle = ProcessWindow { moved_pages: 0, served_faults: 0, ..process(9) };
    let knows_nothing = costs::nominal(&Config::from_preset(Preset::Auto));
    recorder.window("its child", idle, [row(8, 9, 0)], &knows_nothing);
    recorder.window("its child", idle, [], &knows_nothing);
    assert!(partial.is_dir() && !path.exists());
    let finished = recorder.finish().expect("finished").expect("something");
    assert_eq!(finished.rows, 16);
    assert_eq!(finished.bytes, std::fs::metadata(&path).expect("a file").len());
    assert!(!partial.exists());
    record(&recorder, 4..5);
    assert_eq!(recorder.finish().expect("again"), None);
    let trace = read(&path).expect("read");
    assert_eq!((trace.batch.rows.len(), trace.batch.processes.len()), (16, 4));
    assert_eq!(trace.meta.tiers[1].fault_ns, 4_321.0, "as measured last, by who measured");
    let command = |pid, command: &str| Command { pid, command: command.into() };
    assert_eq!(trace.meta.commands, [command(7, "a program"), command(8, "its child")]);
    let again = Recorder::start(&path, meta()).expect_err("it is there");
    assert!(again.to_string().contains("exists; move it away"), "{again}");
}

#[test]
fn parts_are_joined_and_a_killed_recording_is_read_as_far_as_it_came() {
    let folder = Folder::new("trace-parts");
    let path = folder.0.join("trace");
    let recorder = Recorder::start(&path, meta()).expect("started");
    // More rows than a part has.
    let many = record::PART_ROWS as u64 + 100;
    let rows = (0..many).map(|index| row(7, 1, index));
    recorder.window("a program", process(1), rows, &costs_now());
    // As a kill would leave it: one part on disk, the rest lost.
    let why = format!("{:#}", read(&path).expect_err("not there yet"));
    assert!(why.contains("terrace sim --merge") && why.contains(".partial"), "{why}");
    let partial = read(&partial_of(&path)).expect("the parts");
    assert_eq!(partial.batch.rows.len(), record::PART_ROWS);
    let finished = recorder.finish().expect("finished").expect("something");
    assert_eq!(finished.rows as u64, many);
    let trace = sorted(read(&path).expect("read"));
    let expected: Vec<Row> = (0..many).map(|index| row(7, 1, index)).collect();
    assert_eq!(trace.batch.rows, expected);
    assert_eq!(trace.batch.processes.get(&(7, 1)).map(|p| p.managed_bytes), Some(1 << 40));
}

#[test]
fn a_recording_that_broke_off_says_what_is_left_of_it() {
    let folder = Folder::new("trace-broken-off");
    let path = folder.0.join("trace");
    let partial = partial_of(&path);
    let recorder = Recorder::start(&path, meta()).expect("started");
    let rows = || (0..record::PART_ROWS as u64).map(|index| row(7, 1, index));
    recorder.window("a program", process(1), rows(), &costs_now());
    // The next part cannot be written, as on a full disk.
    std::fs::create_dir(partial.join("000001.parquet")).expect("in its place");
    recorder.window("a program", process(1), rows(), &costs_now());
    let why = format!("{:#}", recorder.finish().expect_err("broken off"));
    let merge = format!("terrace sim --merge {} -o {}", partial.display(), path.display());
    assert!(why.contains("broken off; 131072 region-windows") && why.contains(&merge), "{why}");
    assert_eq!(recorder.finish().expect("said once"), None);
}

#[test]
fn what_appeared_at_the_name_of_a_trace_stays() {
    let folder = Folder::new("trace-taken");
    let path = folder.0.join("trace");
    let partial = partial_of(&path);
    let theirs = [path.clone(), folder.0.join("trace.new")];
    let recorder = Recorder::start(&path, meta()).expect("started");
    record(&recorder, 1..4);
    theirs.iter().for_each(|path| std::fs::write(path, "theirs").expect("written"));
    let why = format!("{:#}", recorder.finish().expect_err("taken"));
    assert!(why.contains("exists; move it away") && why.contains("--merge"), "{why}");
    for path in &theirs {
        assert_eq!(std::fs::read(path).expect("there"), b"theirs");
    }
    assert_eq!(read(&partial).expect("the parts").batch.rows.len(), 15);
    assert!(!partial.join("joined.new").exists());
    let why = format!("{:#}", write::put_new(&path, b"ours").expect_err("taken"));
    assert!(why.contains("exists; move it away"), "{why}");
    write::put_new(&folder.0.join("other"), b"ours").expect("free");
    let left = std::fs::read_dir(&folder.0).expect("a folder").count();
    assert_eq!(left, 4, "trace, trace.new, trace.partial, other");
}

#[test]
fn nothing_recorded_leaves_nothing() {
    let folder = Folder::new("trace-nothing");
    let path = folder.0.join("trace");
    let recorder = Recorder::start(&path, meta()).expect("started");
    assert_eq!(recorder.finish().expect("finished"), None);
    assert!(!path.exists() && !partial_of(&path).exists());
    let nowhere = folder.0.join("no/such/trace");
    let why = format!("{:#}", Recorder::start(&nowhere, meta()).expect_err("no folder"));
    assert!(why.starts_with("--record: "), "{why}");
}

/// Each policy, with each of its knobs at another value than usual.
fn policies() -> Vec<PolicyConfig> {
    let usual = PolicyConfig::default();
    let analytical = PolicyConfig { kind: PolicyKind::Analytical, ..usual };
    let money = |money| PolicyConfig { money: Some(money), ..analytical };
    let two_tier = |threshold, two_tier| {
        let kind = PolicyKind::TwoTier;
        PolicyConfig { kind, threshold, two_tier, ..usual }
    };
    let cold_age = ColdAgeConfig {
        promotion_rate: 0.0075,
        percentile: 95.0,
        warm_up_s: Some(7.0),
        minute_s: 12.5,
        scan_s: Some(6.0),
    };
    let mut all: Vec<PolicyConfig> =
        PolicyKind::ALL.map(|kind| PolicyConfig { kind, ..usual }).into();
    all.extend([
        PolicyConfig { alpha: 0.125, ..analytical },
        money(Money::Usd(12.5)),
        money(Money::Share(0.07)),
        PolicyConfig { max_slowdown: 0.025, usd_per_core_month: 2.4, ..usual },
        PolicyConfig { kind: PolicyKind::Waterfall, threshold: Threshold::Share(0.07), ..usual },
        PolicyConfig { kind: PolicyKind::Waterfall, threshold: Threshold::Hotness(12.5), ..usual },
        two_tier(Threshold::Aggressive, 3),
        PolicyConfig { kind: PolicyKind::ColdAge, cold_age, ..usual },
        PolicyConfig { kind: PolicyKind::KernelTwoTier, ..usual },
    ]);
    all
}

#[test]
fn a_policy_is_the_same_in_a_trace_with_each_of_its_knobs() {
    let folder = Folder::new("trace-policies");
    for (at, policy) in policies().into_iter().enumerate() {
        let path = folder.0.join(at.to_string());
        let config = Config { policy, ..Config::from_preset(Preset::Auto) };
        let meta = Meta::of_run(&config, &costs::nominal(&config));
        put(&path, &encode(&mut batch(1..2), &meta).expect("encoded")).expect("written");
        let read = read(&path).expect("read").meta.policy;
        assert_eq!(read.policy(), Some(policy));
        assert_eq!(read.unknown(), None, "{policy:?}");
    }
    let mut torture = Config::from_preset(Preset::Auto);
    torture.torture(1);
    assert_eq!(PolicyMeta::of(&torture).policy(), None);
}

#[test]
fn a_trace_that_does_not_say_a_knob_is_read_and_the_knob_is_unknown() {
    for policy in policies() {
        let config = Config { policy, ..Config::from_preset(Preset::Auto) };
        let mut json = serde_json::to_value(PolicyMeta::of(&config)).expect("JSON");
        let fields = json.as_object_mut().expect("an object");
        for key in ["budget_money", "two_tier", "cold_age"] {
            fields.remove(key).expect(key);
        }
        let old: PolicyMeta = serde_json::from_value(json).expect("read all the same");
        let usual = PolicyConfig::default();
        let (two_tier, cold_age) = (usual.two_tier, usual.cold_age);
        let expected = PolicyConfig { money: None, two_tier, cold_age, ..policy };
        assert_eq!(old.policy(), Some(expected));
        let unknown = match policy.kind {
            PolicyKind::Analytical => Some("budget_money"),
            PolicyKind::TwoTier => Some("two_tier"),
            PolicyKind::ColdAge => Some("cold_age"),
            _ => None,
        };
        assert_eq!(old.unknown(), unknown);
    }
}
