//! The agent: the runtime's thread that talks to the planner.
//!
//! It builds the runtime when the planner says what to build, closes and opens windows, hands
//! plans to the movers, and reports. It decides nothing. When the planner goes away, or talks
//! nonsense, it drops what was planned and waits for another (`link.rs`); the pager goes on
//! serving.

use crate::copies::Copies;
use crate::crash;
use crate::estimate::{self, Estimate};
use crate::forks;
use crate::hurry::Hurry;
use crate::kept;
use crate::lazily;
use crate::link::{self, End, Link};
use crate::loader::{self, Loads};
use crate::locked;
use crate::mover::Mover;
use crate::pager::{doorbell::Doorbell, Pager};
use crate::queue::Queue;
use crate::region::RegionTable;
use crate::runtime::Runtime;
use crate::samples::SampleSlots;
use crate::stats::{self, Stats};
use crate::stores::Stores;
use crate::sys::inherit::Smaps;
use crate::sys::slot::Slot;
use crate::sys::stop::Stopper;
use crate::sys::sync::OnlyThread;
use crate::sys::uffd::{feature, Uffd};
use crate::sys::{credentials, files, media, memory, proc, spare, thread};
use crate::tracker::Tracker;
use crate::training;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;
use terrace_core::state::{PAGE_BYTES, REGION_BYTES};
use terrace_core::tier::{MediumKind, TierId};
use terrace_core::wire::{
    Configure, FromRuntime, Hello, PlanEntry, Report, TierReport, ToRuntime, VERSION,
};
use terrace_store::pool::PoolStats;

/// One in so many bytes that are followed, and one in so many that there are to spare, may be
/// memory that the program has given up lazily and that is left as it is (`lazily.rs`). The kernel
/// cannot reclaim it: a program that grows into the last of what it may have would be ended for it.
const LEFT_PART: u64 = 4;
const LEFT_PART_OF_SPARE: u64 = 64;

/// The runtime of this process, once it is built.
pub static RUNTIME: Slot<Runtime> = Slot::empty();
static QUEUE: Slot<Arc<Queue>> = Slot::empty();
static TRAINER: Slot<Arc<training::Bell>> = Slot::empty();

/// Windows between two estimates.
const ESTIMATE_EVERY: u32 = 16;
/// Faults of our own that measure the wake-up overhead at start.
const CALIBRATION_FAULTS: u64 = 33;

/// The agent thread from its start to its end; see [`stop`].
static THREAD: AtomicU32 = AtomicU32::new(0);
static IS_UP: AtomicBool = AtomicBool::new(false);
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// How long the agent is waited for, and the program's start held up by a planner that does not
/// answer, nanoseconds; and how long between two looks.
const WAIT_NS: u64 = 5_000_000_000;
const BEFORE_MAIN_NS: u64 = 1_000_000_000;
const LOOK_EVERY_US: u64 = 100;

/// Connects to the planner at `path` and serves it, and those that come after it. `owner` is the
/// user that this process was started as.
pub fn run(path: &std::path::Path, owner: u32) {
    THREAD.store(thread::gettid(), Ordering::Relaxed);
    connect_and_serve(path, owner);
    IS_DONE.store(true, Ordering::Release);
}

/// In a forked child: all of it is its parent's.
pub fn forget(_only: &OnlyThread) {
    RUNTIME.clear();
    QUEUE.clear();
    TRAINER.clear();
    THREAD.store(0, Ordering::Relaxed);
    IS_UP.store(false, Ordering::Relaxed);
    IS_DONE.store(false, Ordering::Relaxed);
}

/// Waits until the runtime is built, or will not be. `false` if neither happens in good time.
pub fn await_start() -> bool {
    wait(WAIT_NS, has_started)
}

/// Waits for the same before the program's `main`, for a moment: until then descriptors are opened,
/// and have low numbers before they are moved out of the way. A program that closes 0 and opens a
/// file for it must find 0 free.
pub fn await_start_before_main() {
    wait(BEFORE_MAIN_NS, has_started);
}

/// Whether the runtime is built, and with it all of its threads made.
pub fn is_up() -> bool {
    IS_UP.load(Ordering::Acquire)
}

fn has_started() -> bool {
    is_up() || IS_DONE.load(Ordering::Acquire)
}

/// Ends the agent: its link is shut down for good, and its thread is waited for.
pub fn stop() -> bool {
    link::stop();
    wait(WAIT_NS, || {
        IS_DONE.load(Ordering::Acquire) && !thread::is_alive(THREAD.load(Ordering::Relaxed))
    })
}

fn wait(limit_ns: u64, until: impl Fn() -> bool) -> bool {
    let end_ns = thread::now_ns() + limit_ns;
    loop {
        if until() || thread::now_ns() >= end_ns {
            return until();
        }
        thread::sleep_us(LOOK_EVERY_US);
    }
}

fn connect_and_serve(path: &std::path::Path, owner: u32) {
    let Some(mut link) = Link::open(path, owner) else { return };
    let uffd = match open_uffd() {
        Ok(u) => u,
        Err(why) => {
            link.refuse(&why);
            return link.close();
        }
    };
    crate::interpose::protect_fd(uffd.raw());
    let features = uffd.features;
    let config = loop {
        if let Some(config) = greet(&mut link, features, 1, None) {
            break config;
        }
        if !link.await_next() {
            return;
        }
    };
    let (rt, queue) = match build(uffd, config) {
        Ok(built) => built,
        Err(why) => {
            link.refuse(&why);
            return link.close();
        }
    };
    let Some(tracker) = Tracker::new(rt) else {
        link.refuse(memory::NO_ROOM);
        return link.close();
    };
    let trainer = training::start(rt);
    if let Some(bell) = &trainer {
        TRAINER.set(Box::leak(Box::new(bell.clone())));
    }
    IS_UP.store(true, Ordering::Release);
    let note = rt.stores.config.note.clone();
    let (estimates, estimated_with) = (Vec::new(), 0);
    let closed_at_ns = thread::now_ns();
    let mut agent =
        Agent { rt, queue, tracker, trainer, link, note, estimates, estimated_with, closed_at_ns };
    loop {
        agent.serve();
        loop {
            if !agent.link.await_next() {
                return;
            }
            if agent.welcome() {
                break;
            }
        }
    }
}

/// Says hello; the answer is what to build. `None` if there was none, or not one like that.
fn greet(
    link: &mut Link,
    uffd_features: u64,
    window: u32,
    in_force: Option<Configure>,
) -> Option<Configure> {
    let pid = std::process::id();
    let hello = Hello { version: VERSION, pid, uffd_features, window, in_force };
    link.send(&FromRuntime::Hello(hello));
    match link.receive() {
        Ok(ToRuntime::Configure(config)) => Some(config),
        Ok(_) => {
            link.refuse("its planner has not said how it is to be tiered");
            None
        }
        Err(End::Nonsense) => {
            link.refuse(NONSENSE);
            None
        }
        Err(End::Gone) => None,
    }
}

/// What a planner is told whose messages cannot be read.
const NONSENSE: &str = "its planner sent what is not a message of this version";

/// Set to `stop`, has pages taken out as on a kernel without `UFFDIO_MOVE`: for tests.
pub const MOVER_VARIABLE: &std::ffi::CStr = c"TERRACE_MOVER";

/// Set to `move`, has samples taken out as on a kernel without `RWP_ASYNC`.
pub const SAMPLES_VARIABLE: &std::ffi::CStr = c"TERRACE_SAMPLES";

/// The features in order of what we can do without: all, then without fork events, which need
/// CAP_SYS_PTRACE; and the same without what older kernels do not have.
fn open_uffd() -> Result<Uffd, String> {
    let base = feature::PAGEFAULT_FLAG_WP
        | feature::EVENT_REMAP
        | feature::EVENT_REMOVE
        | feature::EVENT_UNMAP
        | feature::THREAD_ID;
    let is_set = |variable, to| proc::environment(variable).is_some_and(|v| v.as_os_str() == to);
    let moves = if is_set(MOVER_VARIABLE, "stop") { 0 } else { feature::MOVE };
    let watch = if is_set(SAMPLES_VARIABLE, "move") { 0 } else { feature::WATCH };
    let kernels = match moves {
        0 => &[0][..],
        _ => &[moves | watch, moves, 0],
    };
    let ladder = kernels.iter().flat_map(|&kernel| [kernel | feature::EVENT_FORK, kernel]);
    let mut opened = Err(libc::EINVAL);
    for more in ladder {
        opened = opened.or_else(|_| Uffd::open(base | more));
    }
    let mut uffd = opened.map_err(|errno| match errno {
        libc::EPERM | libc::EACCES => {
            "userfaultfd is not permitted (see `terrace doctor`)".to_string()
        }
        libc::EINVAL => "its userfaultfd does not tell of all that it must (Linux 5.18 or \
                             newer is needed)"
            .to_string(),
        e => format!("userfaultfd: errno {e}"),
    })?;
    uffd.raise_fd();
    Ok(uffd)
}

const NO_THREADS: &str = "it may not start the runtime's threads (RLIMIT_NPROC, pids.max)";
const NO_PROC: &str = "/proc/self is not there, or it may not open descriptors enough \
                       (RLIMIT_NOFILE; 128 will do)";

fn build(uffd: Uffd, config: Configure) -> Result<(&'static Runtime, Arc<Queue>), String> {
    let stores = Stores::build(config, proc::mem_total_bytes())?;
    build_over(uffd, stores).map_err(str::to_string)
}

fn build_over(uffd: Uffd, stores: Stores) -> Result<(&'static Runtime, Arc<Queue>), &'static str> {
    const NO_ROOM: &str = memory::NO_ROOM;
    files::set_up();
    let uffd: &'static Uffd = Box::leak(Box::new(uffd));
    let decoders = stores.decoders().map_err(|_| NO_ROOM)?;
    let rt: &'static Runtime = Box::leak(Box::new(Runtime {
        uffd,
        table: RegionTable::default(),
        loads: Loads::new(uffd, &stores).ok_or(NO_ROOM)?,
        stores,
        stats: Stats::default(),
        unreadable: memory::carve_unreadable(REGION_BYTES).ok_or(NO_ROOM)?,
        stopper: if uffd.can_move() { None } else { Some(Stopper::new()?) },
        pagemap: proc::Pagemap::open().ok_or(NO_PROC)?,
        smaps: Smaps::open().ok_or(NO_PROC)?,
        doorbell: Doorbell::new(uffd).ok_or(NO_ROOM)?,
        samples: SampleSlots::new(uffd).ok_or(NO_ROOM)?,
        window: AtomicU32::new(1),
        soon_windows: AtomicU8::new(0),
        paused: AtomicU32::new(0),
        is_threaded: AtomicBool::new(true),
        copies: Copies::default(),
        pager_cpu: AtomicUsize::new(usize::MAX),
        hurry: Hurry::default(),
    }));
    rt.stores.iter().for_each(|(_, tier)| tier.be_helped(&rt.hurry));
    let pager = Pager::new(rt, uffd, decoders);
    let serve = move || {
        // What ends with the agent must not live on in the pager's table.
        files::own_table(&link::descriptors());
        pager.run()
    };
    if !thread::spawn(c"terrace-pager", serve) || !loader::start(rt) {
        return Err(NO_THREADS);
    }
    forks::set_up(rt);
    // Where the pager will be too: after its first fault it follows the thread that faulted.
    thread::on_one_cpu(|| calibrate(rt));
    let queue = Arc::new(Queue::default());
    for number in 0..rt.stores.config.move_threads {
        let mover = Mover::new(rt, queue.clone(), u64::from(number)).ok_or(NO_ROOM)?;
        if !thread::spawn(c"terrace-mover", move || mover.run()) {
            return Err(NO_THREADS);
        }
    }
    if rt.sees_forks() && spare::are_needed() {
        // Behind all descriptors without which there is no runtime.
        spare::set_up();
    }
    // Now, and not when the program first makes a thread: it may have forbidden the call by then.
    thread::robust_head_offset();
    QUEUE.set(Box::leak(Box::new(queue.clone())));
    RUNTIME.set(rt);
    crash::start(rt);
    locked::respect(rt);
    if !kept::keep_early(rt) {
        // Not moving anything is the one way left to be right.
        rt.paused.fetch_add(1, Ordering::AcqRel);
    }
    Ok((rt, queue))
}

/// Measures what a fault costs beyond its service, with faults of our own on a scratch range.
fn calibrate(rt: &'static Runtime) {
    let Some(scratch) = memory::carve(CALIBRATION_FAULTS * PAGE_BYTES as u64) else { return };
    let len = CALIBRATION_FAULTS * PAGE_BYTES as u64;
    if rt.uffd.register_missing(scratch, len).is_err() {
        return;
    }
    let stalled = || stats::get(&rt.stats.stalled_ns);
    let times = |i: u64| {
        let (start, stalled_before) = (thread::now_ns(), stalled());
        memory::touch_for_write(scratch + i * PAGE_BYTES as u64);
        let whole = thread::now_ns() - start;
        // The pager counts what it has served as soon as it has filled the page. On one CPU it has
        // done so when this thread goes on; where that was before, the next fault seems longer.
        (whole, stalled() - stalled_before)
    };
    let (whole, services): (Vec<u64>, Vec<u64>) = (0..CALIBRATION_FAULTS).map(times).unzip();
    let _ = rt.uffd.unregister(scratch, len);
    memory::release(scratch, len);
    // (The first ones are of a kernel that has to find its way; means would tell mostly of them.)
    let (whole, service) = (median(whole), median(services));
    let waking = whole.saturating_sub(service);
    rt.stats.waking_at_start_ns.store(waking, Ordering::Relaxed);
    rt.stats.filling_at_start_ns.store(service, Ordering::Relaxed);
    rt.stats.fault_overhead_ns.store(waking, Ordering::Relaxed);
    rt.stats.stalled_ns.store(0, Ordering::Relaxed);
    rt.stats.fresh_ns.store(0, Ordering::Relaxed);
    rt.stats.zero_faults.store(0, Ordering::Relaxed);
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Agent {
    rt: &'static Runtime,
    queue: Arc<Queue>,
    tracker: Tracker,
    link: Link,
    /// The latest planner's note to its successor.
    note: String,
    /// By tier.
    estimates: Vec<Estimate>,
    /// The dictionary (0 for none) that the estimates were made with.
    estimated_with: u8,
    /// When the last window closed.
    closed_at_ns: u64,
    trainer: Option<Arc<training::Bell>>,
}

impl Agent {
    /// Greets the next planner. `false` if it wants other tiers than there are.
    fn welcome(&mut self) -> bool {
        let rt = self.rt;
        let in_force = Configure { note: self.note.clone(), ..rt.stores.config.clone() };
        let window = rt.window.load(Ordering::Relaxed);
        let asked = greet(&mut self.link, rt.uffd.features, window, Some(in_force.clone()));
        let Some(config) = asked else { return false };
        self.note.clone_from(&config.note);
        // All else was built.
        let is_same = config == Configure { note: config.note.clone(), ..in_force };
        if !is_same {
            self.link.refuse("it has been tiered by another configuration, which is in force");
        }
        is_same
    }

    /// Serves one planner until it is gone.
    fn serve(&mut self) {
        let (rt, queue) = (self.rt, self.queue.clone());
        let mut idle = || {
            if rt.stores.iter().any(|(_, tier)| tier.stats().pool.objects > 0) {
                queue.ask_to_tidy();
            }
        };
        loop {
            let nonsense = match self.link.receive_or(&mut idle) {
                Ok(ToRuntime::Window { number, spare_bytes, soon_windows }) => {
                    self.rt.soon_windows.store(soon_windows, Ordering::Relaxed);
                    self.window(number, spare_bytes);
                    continue;
                }
                Ok(ToRuntime::Plan(entries)) if self.plan(&entries) => continue,
                Ok(ToRuntime::Plan(_)) => "its planner named a tier that there is not",
                Ok(ToRuntime::Configure(_)) => "its planner configured it twice",
                Err(End::Nonsense) => NONSENSE,
                Err(End::Gone) => break,
            };
            self.link.refuse(nonsense);
            break;
        }
        // No planner: nothing new is moved; what is stored stays and is served on demand.
        self.drop_plan(Vec::new());
        lazily::allow(0);
        rt.give_up_copies();
        self.tracker.close();
    }

    /// Hands a plan to the movers. `false` if it names tiers that there are not. Regions that there
    /// are not are nobody's fault: they have gone since the report.
    fn plan(&mut self, entries: &[PlanEntry]) -> bool {
        let exists = |t: TierId| t == TierId::DRAM || self.rt.stores.get(t).is_some();
        if !entries.iter().all(|e| exists(e.tier)) {
            return false;
        }
        let regions = entries.iter().filter_map(|e| Some((self.rt.table.get(e.region)?, e.tier)));
        let mut jobs: Vec<_> = regions.filter(|(r, _)| r.is_followed()).collect();
        for (r, tier) in &jobs {
            r.tier.store(tier.0, Ordering::Relaxed);
            r.is_planned.store(true, Ordering::Relaxed);
            r.is_called_home.store(*tier == TierId::DRAM, Ordering::Relaxed);
        }
        jobs.splice(0..0, self.left_behind(&jobs));
        // (Also without jobs: the tracker takes samples of all that is followed.)
        kept::keep_threads(self.rt);
        self.drop_plan(jobs);
        self.tracker.open(self.rt.window.load(Ordering::Relaxed));
        true
    }

    /// Regions that an earlier plan called home, and that the movers did not come to. This one, for
    /// which they are home, will not name them again.
    fn left_behind(
        &self,
        jobs: &[(&'static crate::region::Region, TierId)],
    ) -> Vec<(&'static crate::region::Region, TierId)> {
        let mut named: Vec<u64> = jobs.iter().map(|(r, _)| r.base).collect();
        named.sort_unstable();
        let all = self.rt.table.all().into_iter();
        let called = all.filter(|r| r.is_called_home.load(Ordering::Relaxed) && r.is_followed());
        let away = called.filter(|r| r.stored_total() > 0 && named.binary_search(&r.base).is_err());
        away.map(|r| (r, TierId::DRAM)).collect()
    }

    fn drop_plan(&self, jobs: Vec<(&'static crate::region::Region, TierId)>) {
        let dropped = self.queue.replace(jobs);
        stats::add(&self.rt.stats.abandoned_moves, dropped as u64);
    }

    fn window(&mut self, n: u32, spare_bytes: u64) {
        let regions = self.tracker.close();
        let pages = regions.iter().map(|r| u64::from(r.resident) + u64::from(r.stored));
        let followed_bytes = pages.sum::<u64>() * PAGE_BYTES as u64;
        lazily::allow((followed_bytes / LEFT_PART).min(spare_bytes / LEFT_PART_OF_SPARE));
        let closed = self.rt.window.swap(n, Ordering::Relaxed);
        // A torture run has loaders fetch pages for programs of one thread as well.
        let is_threaded = self.rt.stores.config.torture_seed != 0 || thread::is_threaded();
        self.rt.is_threaded.store(is_threaded, Ordering::Relaxed);
        let dictionary = self.rt.stores.dictionaries.newest().map_or(0, |d| d.version());
        // A program that has just begun is not yet what it will be.
        let is_young = closed < ESTIMATE_EVERY && closed.is_power_of_two();
        let is_stale = dictionary != self.estimated_with || is_young;
        if self.estimates.is_empty() || is_stale {
            self.estimates = estimate::of(self.rt).unwrap_or_default();
            self.estimated_with = dictionary;
        } else {
            // A tier at a time: all of them together take tens of milliseconds, which is felt by
            // a program that works little beside others that work much.
            let n = (closed % ESTIMATE_EVERY) as usize;
            let is_due = closed >= ESTIMATE_EVERY && n < self.estimates.len();
            if let Some(one) = is_due.then(|| estimate::of_tier(self.rt, n)).flatten() {
                self.estimates[n] = one;
            }
        }
        if let Some(trainer) = &self.trainer {
            trainer.ring();
        }
        self.see_to_copies();
        let report = self.report(closed, regions);
        self.link.send(&FromRuntime::Report(Box::new(report)));
        memory::give_back_heap();
    }

    /// Keeps copies of what comes home if movers need them, and gives up those that are old.
    fn see_to_copies(&mut self) {
        let rt = self.rt;
        let now_ns = thread::now_ns();
        let time_ns = now_ns - std::mem::replace(&mut self.closed_at_ns, now_ns);
        let movers = u64::from(rt.stores.config.move_threads);
        let work = rt.copies.work(self.queue.is_behind(), time_ns * movers);
        // In a torture run always: what they change is what it is to find out.
        let is_torture = rt.stores.config.torture_seed != 0;
        let is_worth_it = rt.copies.are_worth_it(work) || is_torture;
        let wanted = is_worth_it && !rt.is_paused();
        if wanted != rt.copies.is_wanted() {
            let all = rt.table.all();
            let pages: u64 = all.iter().map(|r| r.registered_total() as u64).sum();
            rt.copies.want(wanted, pages);
        }
        rt.expire_copies();
    }

    fn report(&self, window: u32, regions: Vec<terrace_core::wire::RegionReport>) -> Report {
        let s = &self.rt.stats;
        let mut held = vec![0u64; self.rt.stores.config.tiers.len() + 1];
        for r in self.rt.table.all() {
            for (n, count) in held.iter_mut().enumerate() {
                *count += u64::from(r.stored[n].load(Ordering::Relaxed));
            }
        }
        let tiers = self.rt.stores.iter().map(|(id, tier)| {
            let (c, p) = (&s.tiers[id.index()], tier.stats().pool);
            let estimate = self.estimates.get(id.index() - 1).copied().unwrap_or_default();
            // Tables and buffers are in DRAM wherever the pool is.
            let own = p.metadata_bytes + tier.medium().memory_bytes();
            let kind = self.rt.stores.config.tiers[id.index() - 1].medium;
            let beside = !matches!(kind, MediumKind::Dram | MediumKind::Emulated);
            let hidden = hidden_bytes(tier, &p);
            let same_pages = stats::get(&c.same_pages);
            let encoded = held[id.index()].saturating_sub(same_pages);
            TierReport {
                pages: held[id.index()],
                same_pages,
                stored_bytes: without_copies(&p, encoded, self.rt.copies.held()),
                // What lies in memory in spite of its medium's kind costs what memory does.
                pool_bytes: p.pool_bytes + p.idle_bytes - hidden + if beside { 0 } else { own },
                dram_bytes: if beside { own + hidden } else { 0 },
                faults: c.fault_ns.count(),
                fault_ns_p50: c.fault_ns.quantile_ns(0.5),
                fault_ns_p99: c.fault_ns.quantile_ns(0.99),
                fault_ns_mean: c.fault_ns.mean_ns(),
                refused: std::array::from_fn(|k| stats::get(&c.refused[k])),
                estimated_ratio_milli: estimate.ratio_milli,
                estimated_decode_ns: estimate.decode_ns,
                estimated_encode_ns: estimate.encode_ns,
                estimated_encoded_milli: estimate.encoded_milli,
                estimated_packed_milli: estimate.packed_milli,
                fault_ns_total: c.fault_ns.total_ns(),
            }
        });
        Report {
            window,
            regions,
            tiers: tiers.collect(),
            rss_bytes: self.rss_bytes(),
            runtime_bytes: self.runtime_bytes(),
            runtime_cpu_ns: thread::cpu_ns_total(),
            stalled_ns: stats::get(&s.stalled_ns),
            waking_ns: stats::get(&s.waking_ns),
            fresh_ns: stats::get(&s.fresh_ns),
            zero_faults: stats::get(&s.zero_faults),
            sample_faults: stats::get(&s.sample_faults),
            staged_faults: stats::get(&s.staged_faults),
            ahead_pages: stats::get(&s.ahead_pages),
            promoted_pages: stats::get(&s.promoted_pages),
            migrated_pages: stats::get(&s.migrated_pages),
            abandoned_moves: stats::get(&s.abandoned_moves),
            fault_overhead_ns: stats::get(&s.fault_overhead_ns),
            demoted_pages: stats::get(&s.demoted_pages),
            given_up_pages: stats::get(&s.given_up_pages),
            reused_pages: stats::get(&self.rt.copies.used_total),
            copied_pages: self.rt.copies.held(),
        }
    }

    /// The resident set without what lies on a DAX device: the kernel may count mapped pages of it
    /// as memory, which they are not. With what pools have in memory that it counts for nobody.
    fn rss_bytes(&self) -> u64 {
        let (resident, shared) = proc::rss_bytes();
        let mut on_dax = 0;
        for (start, end) in media::dax_ranges() {
            self.rt.pagemap.scan(start, end, |a, b| on_dax += b - a);
        }
        let hidden: u64 =
            self.rt.stores.iter().map(|(_, t)| hidden_bytes(t, &t.stats().pool)).sum();
        resident.saturating_sub(on_dax.min(shared)) + hidden
    }

    /// Heap and stacks that are resident. The pools' bookkeeping is on the heap too and counted
    /// with the pools, so it is taken off here, and so is what media keep in memory.
    fn runtime_bytes(&self) -> u64 {
        let mut stacks = 0;
        for at in thread::stacks() {
            self.rt.pagemap.scan(at, at + thread::stack_bytes(), |a, b| stacks += b - a);
        }
        let of_tier =
            |t: &terrace_store::Tier| t.stats().pool.metadata_bytes + t.medium().memory_bytes();
        let tiers: u64 = self.rt.stores.iter().map(|(_, t)| of_tier(t)).sum();
        (memory::heap_bytes() + stacks).saturating_sub(tiers)
    }
}

/// Bytes of a tier's pool that take memory beside the resident set: files on tmpfs do.
fn hidden_bytes(tier: &terrace_store::Tier, pool: &PoolStats) -> u64 {
    if tier.medium().lies_in_memory() {
        pool.pool_bytes + pool.idle_bytes
    } else {
        0
    }
}

/// Encoded bytes of the pages in a tier, of which `encoded` are there. Its pool may hold copies of
/// pages that are home, too, and these are no measure of what a page shrinks to.
fn without_copies(pool: &PoolStats, encoded: u64, copies: u64) -> u64 {
    if copies == 0 || encoded >= pool.objects {
        return pool.object_bytes;
    }
    (u128::from(pool.object_bytes) * u128::from(encoded) / u128::from(pool.objects)) as u64
}

/// Has our threads look what the program wants of them (`sys/credentials.rs`).
pub fn wake_threads() {
    crash::wake();
    let Some(rt) = RUNTIME.get() else { return };
    rt.doorbell.call(|_| credentials::follow());
    rt.loads.wake_all();
    if let Some(queue) = QUEUE.get() {
        queue.wake_all();
    }
    if let Some(bell) = TRAINER.get() {
        bell.wake_all();
    }
}

/// Drops what is planned and waits until no mover works. Nothing new may come meanwhile
/// (`Runtime::paused`).
pub fn drop_plans() {
    let Some(queue) = QUEUE.get() else { return };
    queue.replace(std::iter::empty());
    while !queue.is_idle() {
        thread::sleep_us(100);
    }
}
