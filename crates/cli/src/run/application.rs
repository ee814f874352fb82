//! One application: its windows, its hotness, its plans.
//!
//! The loop of `serve` is the whole control plane: close a window, take the report, turn it into
//! what the planner wants to know, plan, send the plan, write down what happened and why.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};
use terrace_core::cost::{
    tco_measured, MeasuredTier, TierCost, BYTES_PER_GIB, MOVE_NS_PER_PAGE, TAKE_OUT_NS,
};
use terrace_core::hotness::{RegionHistory, WindowSeen};
use terrace_core::latency::Latency;
use terrace_core::looks::Watching;
use terrace_core::plan::{Measured, Plan, Policy, RegionView, Why};
use terrace_core::shrink::{TierAverage, ZSMALLOC_OVERHEAD};
use terrace_core::tier::{MediumKind, Pool, TierId, TierSpec};
use terrace_core::wire::{
    split_message, Configure, FromRuntime, Hello, PlanEntry, RegionReport, Report, TierConfig,
    TierReport, ToRuntime, NOTE_BYTES_MAX, REFUSALS, VERSION,
};

use super::bill::Bill;
use super::cold_age;
use super::decisions::{Decisions, Known as Weighed};
use super::kernel_two_tier::KernelTwoTier;
use super::memory_limit;
use super::pressure::{lost, service_ns, Meter};
use super::recording::{self, Known};
use super::session::Shared;
use super::signals;
use super::trials::{self, Trials};
use crate::config::{self, Config, PolicyKind};
use crate::doctor::{self, TrackerChoice};
use crate::knobs;
use crate::policy;
use crate::say;
use crate::status::ApplicationStatus;

/// The first windows find out what there is to follow; nothing is planned in them yet.
const SHORT_WINDOWS: u32 = 2;
/// How much shorter they are.
const SHORT_WINDOW_SHARE: f64 = 0.25;
/// Longest second window of a planner that continues another's work.
const CATCH_UP: Duration = Duration::from_millis(400);
/// Windows in which too little is known to say that a budget cannot be kept: as many as hotness is
/// averaged over, and the short ones.
const SETTLING_WINDOWS: u32 = 8;
/// Faults after which a tier's measured latency replaces the estimate.
pub(super) const FAULTS_TO_TRUST: u64 = 200;
/// What serving a fault costs besides decoding: reading the message, the copy, the pool.
const SERVICE_NS: f64 = 2_500.0;

/// What a runtime may say without being asked: that it gives up, and why.
const UNASKED_BYTES_MAX: usize = 64 << 10;
/// No timeout at all is what the kernel makes of less.
const READ_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// One application and its planner.
pub(super) struct Application {
    pid: u32,
    command: String,
    stream: UnixStream,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    tracker: TrackerChoice,
    policy: Option<Box<dyn Policy>>,
    /// Where plans are carried out by the kernel instead of the runtime.
    kernel: Option<KernelTwoTier>,
    meter: Meter,
    /// What the last window did to the program.
    measured: Option<Measured>,
    /// Whether it was said that the budget of money cannot be kept.
    said_over: bool,
    /// By compressed tier.
    latencies: Vec<Latency>,
    trials: Trials,
    decisions: Arc<Decisions>,
    /// What the last plan was made of.
    weighed: Weighed,
    /// By region: its history, and the window it was last reported in.
    histories: HashMap<u64, (RegionHistory, u32)>,
    first_seen: Instant,
    bill: Bill,
    /// The report before, and the planner's CPU time then.
    last: Option<(Report, u64)>,
    planner_cpu_ns: u64,
    /// What the last plan takes for soon ([`terrace_core::plan::Terms::soon_windows`]).
    soon_windows: u8,
    /// What the last plan was made of, where a trace is recorded.
    known: Option<Known>,
}

impl Application {
    pub(super) fn new(pid: u32, stream: UnixStream, shared: Arc<Shared>) -> Application {
        Application {
            decisions: shared.decisions_of(pid, policy::residence(&shared.config)),
            weighed: Weighed::default(),
            pid,
            meter: Meter::new(pid),
            measured: None,
            command: command_of(pid),
            stream,
            buffer: Vec::new(),
            policy: policy::build(&shared.config),
            kernel: None,
            shared,
            tracker: TrackerChoice::default(),
            said_over: false,
            latencies: Vec::new(),
            trials: Trials::default(),
            histories: HashMap::new(),
            first_seen: Instant::now(),
            bill: Bill::default(),
            last: None,
            planner_cpu_ns: 0,
            soon_windows: 0,
            known: None,
        }
    }

    /// What is decided over this connection, by which it can be told from others to the process.
    pub(super) fn decisions(&self) -> Arc<Decisions> {
        self.decisions.clone()
    }

    /// Plans until the application goes away.
    pub(super) fn serve(mut self) -> Result<()> {
        match self.receive()? {
            Some(FromRuntime::Hello(h)) if h.version == VERSION => self.serve_after(&h),
            Some(FromRuntime::Hello(h)) => bail!(
                "its runtime speaks version {} of the protocol, this terrace version {VERSION}; \
                 install both from one build",
                h.version
            ),
            Some(FromRuntime::Refused(why)) => bail!("{why}"),
            Some(FromRuntime::Report(_)) => bail!("its runtime reported before it said hello"),
            // A short-lived program that ended before its runtime was up.
            None => Ok(()),
        }
    }

    /// Plans for a runtime that has said hello, until it goes away.
    pub(super) fn serve_after(mut self, hello: &Hello) -> Result<()> {
        self.tracker = doctor::tracker(hello.uffd_features);
        self.shared.has_door(self.pid, hello.pid, &self.decisions);
        // What it was built to, if it was: it has said what that is, and we have agreed.
        if self.shared.config.policy.kind == PolicyKind::KernelTwoTier {
            let run = &self.shared.config.run;
            match KernelTwoTier::new(self.pid, run.cooling_windows, run.move_mib_s) {
                Ok(kernel) => self.kernel = Some(kernel),
                // A child that has ended already.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(e) => return Err(e).context("its pages cannot be handed to the kernel"),
            }
        }
        let built = hello.in_force.clone().map(|c| Configure { note: self.note(), ..c });
        let configure = built.unwrap_or_else(|| self.configure());
        if self.send(&ToRuntime::Configure(configure)).is_err() {
            // Ended before it could be told anything.
            return Ok(());
        }
        let first = hello.window.max(1);
        let is_successor = hello.in_force.is_some();
        for window in first.. {
            if self.has_hung_up_within(self.window_time(window - first, is_successor))? {
                break;
            }
            // One that has hung up may have said why, and has ended otherwise.
            let spare_bytes = memory_limit::spare_bytes(self.pid);
            let opens = ToRuntime::Window {
                number: window + 1,
                spare_bytes,
                soon_windows: self.soon_windows,
            };
            let _ = self.send(&opens);
            let report = match self.receive() {
                Ok(Some(FromRuntime::Report(r))) => self.as_placed(*r),
                Ok(Some(FromRuntime::Refused(why))) => bail!("{why}"),
                Ok(Some(FromRuntime::Hello(_))) => bail!("its runtime said hello twice"),
                Ok(None) => break,
                Err(e) => return Err(e.context("its runtime talks nonsense; no more plans for it")),
            };
            let cpu_before = signals::thread_cpu_ns();
            let solve_start = Instant::now();
            let (plan, entries) = self.plan(&report);
            let solve = solve_start.elapsed();
            let _ = self.send(&ToRuntime::Plan(entries));
            self.soon_windows =
                plan.as_ref().map_or(0, |p| p.terms.soon_windows(&self.weighed.tiers));
            self.decisions.record(&report, &self.weighed, plan.as_ref());
            let mover_ns = self.kernel.as_ref().map_or(0, KernelTwoTier::take_cpu_ns);
            self.planner_cpu_ns += signals::thread_cpu_ns() - cpu_before + mover_ns;
            if is_successor && window == first {
                // Its counters have run since the program started, and its window since the last
                // planner went: what there is to compare with, and no window of ours.
                self.last = Some((report.clone(), self.planner_cpu_ns));
                self.known = None;
            }
            self.publish(&report, &plan, solve);
            self.record(&report, plan.as_ref());
            self.histories.retain(|_, h| h.1 == window);
            self.last = Some((report, self.planner_cpu_ns));
        }
        self.decisions.finish();
        self.shared.scored(self.pid, &self.decisions, self.hindsight());
        Ok(())
    }

    /// Waits, and ends the wait when the runtime hangs up. What it may say before that is kept for
    /// [`Self::receive`]; whether it hung up without a word.
    fn has_hung_up_within(&mut self, wait: Duration) -> Result<bool> {
        let end = Instant::now() + wait;
        let outcome = loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Ok(false);
            }
            if self.buffer.len() >= UNASKED_BYTES_MAX {
                std::thread::sleep(left);
                break Ok(false);
            }
            self.stream.set_read_timeout(Some(left.max(READ_TIMEOUT_MIN)))?;
            let mut chunk = [0; 4 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => break Ok(self.buffer.is_empty()),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => break Ok(self.buffer.is_empty()),
                    _ => break Err(e).context("reading from its runtime"),
                },
            }
        };
        self.stream.set_read_timeout(None)?;
        outcome
    }

    fn hindsight(&self) -> Value {
        self.decisions.hindsight(self.shared.config.tiers.iter().map(|t| t.name.as_str()))
    }

    /// How long the planner's `n`th window lasts. One who continues another's work comes late: the
    /// regions are known, and most of their pages may be in tiers already.
    fn window_time(&self, n: u32, is_successor: bool) -> Duration {
        let whole = Duration::from_secs_f64(self.shared.config.run.window_s);
        match n {
            0 if is_successor => Duration::ZERO,
            1 if is_successor => whole.mul_f64(SHORT_WINDOW_SHARE).min(CATCH_UP),
            n if n < SHORT_WINDOWS => whole.mul_f64(SHORT_WINDOW_SHARE),
            _ => whole,
        }
    }

    /// What a planner has to know that continues our work.
    fn note(&self) -> String {
        let mut note = config::write::whole(&self.shared.config);
        if note.len() > NOTE_BYTES_MAX {
            note.clear();
        }
        note
    }

    fn configure(&self) -> Configure {
        let c = &self.shared.config;
        let clamp8 = |n: u32, max: u32| n.min(max) as u8;
        Configure {
            cutoff_bytes: c.run.cutoff_bytes,
            samples_per_region: clamp8(c.run.samples_per_region, 64),
            cooling_windows: clamp8(c.run.cooling_windows, 64),
            move_threads: clamp8(c.run.move_threads, 8),
            move_mib_s: u32::try_from(c.run.move_mib_s).unwrap_or(0),
            // What the kernel holds is no tier of the runtime.
            tiers: if self.kernel.is_some() { Vec::new() } else { tiers_of(c) },
            torture_seed: c.run.torture_seed,
            note: self.note(),
            watching: match c.policy.kind.watching() {
                // Torture sends down what came back, too.
                Watching::Ages if c.run.torture_seed != 0 => Watching::Use,
                watching => watching,
            },
        }
    }

    /// A report with what the kernel holds for us, where it does.
    fn as_placed(&mut self, mut report: Report) -> Report {
        if let Some(kernel) = &mut self.kernel {
            kernel.observe(&mut report);
        }
        report
    }

    // ---- report -> plan --------------------------------------------------------------------

    fn plan(&mut self, report: &Report) -> (Option<Plan>, Vec<PlanEntry>) {
        self.trials.observe(&report.tiers);
        let averages = self.averages(report);
        let regions: Vec<RegionView> =
            report.regions.iter().map(|r| self.view(r, report.window, &averages)).collect();
        let tiers = self.costs(report);
        let before = self.last.as_ref().map(|(report, cpu_ns)| (report, *cpu_ns));
        let measured = self.meter.window(report, self.planner_cpu_ns, before);
        self.measured = measured;
        if self.shared.recorder.is_some() {
            let (regions, costs) = (regions.clone(), tiers.clone());
            self.known = Some(Known { regions, costs, measured });
        }
        let beside = self.beside(report);
        let contention = measured.map_or(1.0, |m| m.contention);
        let Some(policy) = &mut self.policy else {
            self.weighed = Weighed { regions, tiers, contention };
            return (None, Vec::new());
        };
        policy.beside(beside);
        if let Some(measured) = measured {
            policy.learn(&measured);
        }
        if self.shared.config.policy.kind == PolicyKind::ColdAge {
            policy.limit(memory_limit::is_reached(self.pid));
        }
        let plan = policy.plan(&regions, &tiers);
        // Once it is known what pages shrink to; and once is enough.
        let is_over = matches!(plan.why, Why::OverMoney { .. }) && report.window > SETTLING_WINDOWS;
        if is_over && !self.said_over {
            self.said_over = true;
            say!("terrace: process {}: {}", self.pid, plan.why);
        }
        let mut moves = plan.moves.clone();
        // What is in use and in the wrong place first, hottest first, then the coldest downwards:
        // if time runs out, what was not done is what mattered least.
        let by_importance = |a: &terrace_core::plan::Move, b: &terrace_core::plan::Move| {
            let hot = |m: &terrace_core::plan::Move| regions[m.region as usize].hotness;
            let up = |m: &terrace_core::plan::Move| m.to == TierId::DRAM;
            let order = if up(a) { hot(b).total_cmp(&hot(a)) } else { hot(a).total_cmp(&hot(b)) };
            up(b).cmp(&up(a)).then(order).then(a.id.cmp(&b.id))
        };
        // Torture has an order of its own.
        if self.shared.config.run.torture_seed == 0 {
            moves.sort_by(by_importance);
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.carry_out(&moves);
            moves.clear();
        }
        let entries = moves.iter().map(|m| PlanEntry { region: m.id, tier: m.to }).collect();
        self.weighed = Weighed { regions, tiers, contention };
        (Some(plan), entries)
    }

    fn view(&mut self, r: &RegionReport, window: u32, averages: &[TierAverage]) -> RegionView {
        let (history, seen_in) = self.histories.entry(r.region).or_default();
        *seen_in = window;
        // A region that was not sampled and holds nothing in tiers was not observed.
        let faults = r.faults.min(512) as u16;
        let is_observed = r.samples > 0 || r.tier != 0 || r.stored > 0;
        let seen = is_observed.then(|| WindowSeen {
            present: r.resident_at_open,
            stored: r.stored.saturating_add(faults),
            sampled: u16::from(r.samples),
            hits: u16::from(r.hits),
            faults,
        });
        if let Some(seen) = seen {
            history.observe(seen);
        }
        let (ratios, refused) = r.shrunk.ratios(averages);
        // The next plan's moves are made in the window after the one that was just closed.
        let waits = (self.shared.config.run.cooling_windows as usize).saturating_sub(1);
        // The runtime counts them where it has sent the region down itself.
        let cooling = match r.tier != 0 && self.kernel.is_none() {
            true => u32::from(r.resting),
            false => history.came_back(waits),
        };
        RegionView {
            ratios,
            refused,
            pages: u32::from(r.resident) + u32::from(r.stored),
            resident: u32::from(r.resident),
            cooling: cooling.min(u32::from(r.resident)),
            hotness: history.hotness(),
            calm: history.calm(),
            windows_seen: history.windows_seen(),
            newest: history.newest(),
            long: history.long(),
            rest_windows: history.rest_windows(),
            told: history.told(),
            used_again: history.used_again(),
            since_down_windows: history.since_down_windows(),
            down_windows: history.down_windows(),
            seen,
            ..RegionView::at(r.region, TierId(r.tier))
        }
    }

    /// What each tier costs: its latency as measured, or as estimated until there is enough to
    /// measure; its ratio by trials.
    fn costs(&mut self, report: &Report) -> Vec<TierCost> {
        let config = &self.shared.config;
        self.latencies.resize(report.tiers.len(), Latency::default());
        let mut costs = vec![TierCost::dram(config.dram().usd_per_gib_month)];
        let tiers = config.tiers.iter().zip(&report.tiers);
        for (tier, ((spec, t), latency)) in tiers.zip(&mut self.latencies).enumerate() {
            let estimated = SERVICE_NS + report.fault_overhead_ns as f64;
            let estimated = estimated + f64::from(t.estimated_decode_ns);
            let fault_ns = latency.observe(t.faults, t.fault_ns_total, estimated);
            // zbud's loss is in the pairing, which the estimate tried out; zsmalloc's is small. How
            // fragmented a pool happens to be says nothing about what one more page takes.
            let ratio = if let Some(tried) = self.trials.ratio(tier) {
                tried
            } else if let (Pool::Zsmalloc, Some(encoded)) = (spec.pool, trials::held(t)) {
                encoded * ZSMALLOC_OVERHEAD
            } else if t.estimated_ratio_milli > 0 {
                f64::from(t.estimated_ratio_milli) / 1000.0
            } else {
                1.0
            };
            let usd_per_gib_month = spec.medium.usd_per_gib_month;
            let move_ns = match t.estimated_encode_ns {
                0 => MOVE_NS_PER_PAGE,
                encode_ns => TAKE_OUT_NS + f64::from(encode_ns),
            };
            let ratio = ratio.clamp(0.01, 1.0);
            costs.push(TierCost { fault_ns, move_ns, usd_per_gib_month, ratio });
        }
        costs
    }

    /// Price of the memory that is in no region: what is not followed, and the runtime's own.
    fn beside(&self, report: &Report) -> f64 {
        let config = &self.shared.config;
        let tiers = config.tiers.iter().zip(&report.tiers);
        let pools = tiers.map(|(spec, t)| match spec.medium.kind.is_resident() {
            true => t.pool_bytes,
            false => 0,
        });
        let resident: u64 = report.regions.iter().map(|r| u64::from(r.resident) * 4096).sum();
        let beside = report.rss_bytes.saturating_sub(pools.sum::<u64>() + resident);
        beside as f64 / BYTES_PER_GIB * config.dram().usd_per_gib_month
    }

    /// What the tiers' codecs do on average.
    fn averages(&self, report: &Report) -> Vec<TierAverage> {
        let tiers = self.shared.config.tiers.iter().zip(&report.tiers);
        let all_tried = (0..report.tiers.len()).all(|tier| self.trials.encoded(tier).is_some());
        let average = |(tier, (spec, t)): (usize, (&TierSpec, &TierReport))| {
            // Of the same pages all, or else of what each holds.
            let tried = self.trials.encoded(tier);
            let encoded = if all_tried { tried } else { trials::held(t).or(tried) };
            TierAverage {
                codec: spec.codec,
                level: spec.level,
                pool: spec.pool,
                has_blocks: spec.block_kib > 0,
                encoded,
                // Of pages that shrink to what the trials' did on average.
                packed: if all_tried { self.trials.packed(tier) } else { None },
            }
        };
        tiers.enumerate().map(average).collect()
    }

    // ---- what happened, for people ---------------------------------------------------------

    fn publish(&mut self, report: &Report, plan: &Option<Plan>, solve: Duration) {
        let money = self.money(report);
        let seen_s = self.first_seen.elapsed().as_secs_f64();
        self.bill.add(seen_s, money.managed_bytes, money.saved);
        let last = self.timeline(report, plan, solve);
        let totals = json!({
            "faults": report.served_faults(),
            "stalled_ms": report.stalled_ns as f64 / 1e6,
            "terrace_cpu_ms": (report.runtime_cpu_ns + self.planner_cpu_ns) as f64 / 1e6,
            "promoted_pages": report.promoted_pages,
            "migrated_pages": report.migrated_pages,
            "abandoned_moves": report.abandoned_moves,
            "zero_faults": report.zero_faults,
            "sample_faults": report.sample_faults,
            "staged_faults": report.staged_faults,
            "ahead_pages": report.ahead_pages,
            "demoted_pages": report.demoted_pages,
            "given_up_pages": report.given_up_pages,
            "reused_pages": report.reused_pages,
            "pages_moved": pages_moved(report),
            "managed_gib_s": self.bill.managed_gib_s,
            "saved_gib_s": self.bill.saved_gib_s,
        });
        self.shared.publish(ApplicationStatus {
            pid: self.pid,
            command: self.command.clone(),
            started_s: seen_s,
            has_ended: false,
            last,
            totals,
        });
    }

    /// Adds the window to the trace, if one is recorded.
    fn record(&mut self, report: &Report, plan: Option<&Plan>) {
        let Some(known) = self.known.take() else { return };
        let Some(recorder) = &self.shared.recorder else { return };
        let money = self.money(report);
        let before = self.last.as_ref().map(|(report, _)| report);
        let process =
            recording::process(report, before, &known, (money.managed_bytes, money.saved));
        let rows = recording::rows(self.pid, report, &known, plan);
        recorder.window(&self.command, process, rows, &known.costs);
    }

    /// One line of the timeline: the fields of docs/timeline.md.
    fn timeline(&self, report: &Report, plan: &Option<Plan>, solve: Duration) -> Value {
        let config = &self.shared.config;
        let before = self.last.as_ref().map(|(report, _)| report);
        let cpu_before = self.last.as_ref().map(|(report, cpu)| report.runtime_cpu_ns + cpu);
        let ms = |now: u64, then: Option<u64>| (now - then.unwrap_or(0).min(now)) as f64 / 1e6;
        let money = self.money(report);
        let recommended = |n: usize| plan.as_ref().map_or(0, |p| p.recommended[n]);
        let resident: u64 = report.regions.iter().map(|r| u64::from(r.resident)).sum();
        let mut tiers = vec![json!({
            "name": config.dram().name, "codec": null, "pool": null,
            "medium": config.dram().name, "medium_kind": "dram", "emulated": false,
            "usd_per_gib_month": config.dram().usd_per_gib_month,
            "recommended_pages": recommended(0), "pages": resident,
            "stored_bytes": 0, "pool_bytes": 0, "dram_bytes": 0, "faults": 0, "faults_total": 0,
            "fault_ns_p50": 0, "fault_ns_p99": 0, "refused": {},
        })];
        for (n, (spec, t)) in config.tiers.iter().zip(&report.tiers).enumerate() {
            let faults_before = before.and_then(|b| b.tiers.get(n)).map_or(0, |b| b.faults);
            let refused: serde_json::Map<String, Value> =
                REFUSALS.iter().zip(t.refused).map(|(why, n)| ((*why).into(), n.into())).collect();
            tiers.push(json!({
                "name": spec.name, "codec": spec.codec.name(), "pool": spec.pool.name(),
                "medium": spec.medium.name, "medium_kind": spec.medium.kind.name(),
                "emulated": spec.medium.kind == MediumKind::Emulated,
                "usd_per_gib_month": spec.medium.usd_per_gib_month,
                "recommended_pages": recommended(n + 1), "pages": t.pages,
                "stored_bytes": t.stored_bytes, "pool_bytes": t.pool_bytes,
                "dram_bytes": t.dram_bytes,
                "faults": t.faults - faults_before.min(t.faults), "faults_total": t.faults,
                "fault_ns_p50": t.fault_ns_p50, "fault_ns_p99": t.fault_ns_p99,
                "refused": refused,
            }));
        }
        let cpu_ns = report.runtime_cpu_ns + self.planner_cpu_ns;
        let policy = config.policy;
        let has_threshold = matches!(
            policy.kind,
            PolicyKind::Waterfall | PolicyKind::TwoTier | PolicyKind::KernelTwoTier
        );
        let threshold = has_threshold.then(|| policy.threshold.to_string());
        // An amount of money is in its place.
        let has_alpha = policy.kind == PolicyKind::Analytical && policy.money.is_none();
        let idle = "the policy is none: nothing is moved";
        let why = plan.as_ref().map_or(idle.to_string(), |p| p.why.to_string());
        json!({
            "pid": self.pid, "command": self.command,
            "window": report.window, "t_s": self.first_seen.elapsed().as_secs_f64(),
            "preset": config.preset,
            "policy": if config.run.torture_seed != 0 { "torture" } else { policy.kind.name() },
            "alpha": has_alpha.then_some(policy.alpha),
            "budget_money": knobs::budget_money(config),
            "max_slowdown": (policy.kind == PolicyKind::Slowdown).then_some(policy.max_slowdown),
            "threshold": threshold,
            "two_tier": (policy.kind == PolicyKind::TwoTier).then_some(policy.two_tier),
            "cold_age": cold_age::timeline(self.policy.as_deref(), policy.cold_age),
            "tracker": self.tracker,
            "tiers": tiers,
            "rss_bytes": report.rss_bytes,
            "managed_bytes": money.managed_bytes,
            "runtime_bytes": report.runtime_bytes,
            "tco_saved": money.saved,
            "usd_per_month": money.usd_per_month,
            "usd_saved_per_month": money.usd_saved_real,
            "stalled_ms": ms(report.stalled_ns, before.map(|b| b.stalled_ns)),
            "lost": before.zip(self.measured).map(|(before, m)| lost(report, before, &m)),
            "terrace_cpu_ms": ms(cpu_ns, cpu_before),
            "fault_service_ms": ms(service_ns(report), before.map(service_ns)),
            "plan": {
                "moves": plan.as_ref().map_or(0, |p| p.moves.len()),
                "why": why,
                "solve_ms": solve.as_secs_f64() * 1e3,
            },
            "moves_total": {
                "demoted": report.demoted_pages,
                "migrated": report.migrated_pages,
                "promoted": report.promoted_pages,
                "faulted": faulted_pages(report),
                "given_up": report.given_up_pages,
                "reused": report.reused_pages,
            },
            "copied_pages": report.copied_pages,
            "resting": {
                "pages": report.regions.iter().map(|r| u64::from(r.resting)).sum::<u64>(),
                "soon_windows": self.soon_windows,
            },
            "pages_moved": pages_moved(report),
            "faults_total": report.served_faults(),
            "hindsight": self.hindsight(),
        })
    }

    /// Equation 12 over measured bytes. Pools in memory, what other tiers keep there and the
    /// runtime are part of the resident set; what the application would take without Terrace is the
    /// rest of it plus what is stored.
    fn money(&self, report: &Report) -> Money {
        let config = &self.shared.config;
        let dram = config.dram().usd_per_gib_month;
        let resident = config.tiers.iter().zip(&report.tiers).map(|(spec, t)| {
            t.dram_bytes + if spec.medium.kind.is_resident() { t.pool_bytes } else { 0 }
        });
        let pools: u64 = resident.sum();
        let application = report.rss_bytes.saturating_sub(pools + report.runtime_bytes);
        let beside: u64 = report.tiers.iter().map(|t| t.dram_bytes).sum();
        let runtime = MeasuredTier {
            original_bytes: 0,
            pool_bytes: report.runtime_bytes + beside,
            usd_per_gib_month: dram,
        };
        let tier = |spec: &TierSpec, t: &TierReport| MeasuredTier {
            original_bytes: t.pages * 4096,
            pool_bytes: t.pool_bytes,
            usd_per_gib_month: spec.medium.usd_per_gib_month,
        };
        let mut all = vec![runtime];
        let mut real = vec![runtime];
        for (spec, t) in config.tiers.iter().zip(&report.tiers) {
            all.push(tier(spec, t));
            if spec.medium.kind != MediumKind::Emulated {
                real.push(tier(spec, t));
            }
        }
        let (all, real) =
            (tco_measured(application, dram, &all), tco_measured(application, dram, &real));
        let stored: u64 = report.tiers.iter().map(|t| t.pages * 4096).sum();
        Money {
            managed_bytes: application + stored,
            saved: all.saved,
            usd_per_month: all.usd_per_month,
            usd_saved_real: real.usd_per_month_all_dram - real.usd_per_month,
        }
    }

    // ---- the link --------------------------------------------------------------------------

    fn send(&mut self, message: &ToRuntime) -> std::io::Result<()> {
        self.stream.write_all(&message.encode())
    }

    /// The next message; `None` when the application has ended.
    fn receive(&mut self) -> Result<Option<FromRuntime>> {
        loop {
            if let Some((body, used)) = split_message(&self.buffer)? {
                let message = FromRuntime::decode(body)?;
                self.buffer.drain(..used);
                return Ok(Some(message));
            }
            let mut chunk = vec![0u8; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e).context("reading from its runtime"),
            }
        }
    }
}

struct Money {
    managed_bytes: u64,
    saved: f64,
    usd_per_month: f64,
    usd_saved_real: f64,
}

/// Pages that came home because somebody touched them or one of their neighbours: from a tier, or
/// caught on the way there.
fn faulted_pages(report: &Report) -> u64 {
    report.served_faults() + report.ahead_pages + report.staged_faults
}

/// Times that a page's bytes changed their place for good: down, across, up, since the start.
fn pages_moved(report: &Report) -> u64 {
    let planned = report.demoted_pages + report.migrated_pages + report.promoted_pages;
    planned + faulted_pages(report)
}

/// The tiers as the runtime has them.
pub(super) fn tiers_of(config: &Config) -> Vec<TierConfig> {
    let dram_usd = config.dram().usd_per_gib_month;
    let tier = |t: &TierSpec| TierConfig {
        codec: t.codec,
        level: t.level,
        pool: t.pool,
        medium: t.medium.kind,
        latency_ns: t.medium.latency_ns,
        bandwidth_mib_s: t.medium.bandwidth_mib_s,
        place: t.medium.place.clone(),
        block_kib: t.block_kib,
        cutoff_bytes: t.cutoff_bytes(config.run.cutoff_bytes, dram_usd),
    };
    config.tiers.iter().map(tier).collect()
}

fn command_of(pid: u32) -> String {
    on_one_line(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
}

/// Words that end with a zero byte, each on the same line: one may be a whole script.
fn on_one_line(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let words: Vec<&str> =
        text.split(|c: char| c.is_control() || c == ' ').filter(|w| !w.is_empty()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_command_is_one_line_whatever_its_words_hold() {
        let raw = b"python3\0-c\0import time\nprint(1)\n\0\0x  y\0";
        assert_eq!(super::on_one_line(raw), "python3 -c import time print(1) x y");
        assert_eq!(super::on_one_line(b""), "");
    }
}
