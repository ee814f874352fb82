//! Every state of a page and every event, one by one: the documented outcome.
//!
//! What movers and loaders do to a word when they finish or give up is in the transitions that the
//! seeds must have met (`pairs.rs`), because it is only a question of who was first.

use crate::kernel::{self, Leave, Newest, MAIN, PAGE};
use crate::pager::moves::{Going, Sampling};
use crate::pager::Pager;
use crate::pairs::{self, Kind};
use crate::queue::Queue;
use crate::region::Region;
use crate::runtime::Runtime;
use crate::schedule::{self, Stop, Style};
use crate::sys::{media, memory, thread};
use crate::watch::Watched;
use crate::world::{Setting, World};
use crate::{agent, app, forks, standstill};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use terrace_core::state::REGION_BYTES;
use terrace_core::tier::TierId;

/// What is done when it says so.
fn call_until(mut f: impl FnMut(&mut Pager) -> bool) -> impl FnMut(&mut Pager) -> Option<()> {
    move |pager| f(pager).then_some(())
}

/// Where a page is before the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Home,
    /// Its removal was announced and not carried out: it is still there.
    Zapping,
    /// Its removal is done; nobody has looked since.
    Zapped,
    Staged,
    Encoding,
    Stored,
    StoredSlowly,
    Same,
    Sampled,
    /// A loader has been asked for it.
    Loading,
}

use Before as B;

const ROWS: [Before; 10] = [
    B::Home,
    B::Zapping,
    B::Zapped,
    B::Staged,
    B::Encoding,
    B::Stored,
    B::StoredSlowly,
    B::Same,
    B::Sampled,
    B::Loading,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Read,
    Write,
    /// Two threads at once.
    ReadTwice,
    Remove,
    Unmap,
    Remap,
    /// The child reads the page, too.
    Fork,
    MoveOut,
    ReturnStaged,
    Sample,
    Unsample,
    Promote,
    Unregister,
}

use Event as E;
use Kind::{Encoding, Home, HomeZapped, Restoring, Same, Sampled, Staged, Stored, StoredSlowly};

// Short, for the table.
const H: Kind = Kind::Home;
const Z: Kind = Kind::HomeZapped;
const G: Kind = Kind::Staged;
const C: Kind = Kind::Encoding;
const T: Kind = Kind::Stored;
const L: Kind = Kind::StoredSlowly;
const S: Kind = Kind::Same;
const M: Kind = Kind::Sampled;
const R: Kind = Kind::Restoring;

/// What each event makes of each row, in the order of [`ROWS`]. For `Remap`, the word at the new
/// address.
#[rustfmt::skip]
const TABLE: [(Event, [Kind; 10]); 13] = [
    // Rows across: Home, Zapping, Zapped, Staged, Encoding, Stored, StoredSlowly, Same,
    // Sampled, Loading.
    (E::Read,          [H, Z, H, H, H, H, H, H, H, H]),
    (E::Write,         [H, Z, H, H, H, H, H, H, H, H]),
    (E::ReadTwice,     [H, Z, H, H, H, H, H, H, H, H]),
    (E::Remove,        [Z; 10]),
    (E::Unmap,         [H; 10]),
    (E::Remap,         [H, Z, Z, M, M, T, L, S, M, L]),
    (E::Fork,          [H, Z, Z, G, C, T, L, S, M, R]),
    (E::MoveOut,       [G, Z, Z, G, C, T, L, S, M, R]),
    (E::ReturnStaged,  [H, Z, Z, H, C, T, L, S, M, R]),
    (E::Sample,        [M, Z, Z, G, C, T, L, S, M, R]),
    (E::Unsample,      [H, Z, Z, G, C, T, L, S, H, R]),
    (E::Promote,       [H, Z, Z, G, C, H, H, H, M, R]),
    (E::Unregister,    [H, Z, H, G, C, T, L, S, M, R]),
];

const START: u64 = app::BASE;
const PAGES: u64 = 8;
/// The page that everything happens to.
const I: usize = 3;
const AT: u64 = START + I as u64 * PAGE;
const ELSEWHERE: u64 = app::BASE + 8 * REGION_BYTES;
const FAST: TierId = TierId(1);
const SLOW: TierId = TierId(2);

/// Goes through the table, and through what is no page's business.
pub fn check() -> Result<(), String> {
    forks_older_than_the_runtime().map_err(|why| format!("a fork and its runtime: {why}"))?;
    watched_pages_say_whether_they_were_touched().map_err(|why| format!("watched pages: {why}"))?;
    a_tier_that_takes_nothing_has_nothing_moved().map_err(|why| format!("a full disk: {why}"))?;
    for newest in [Newest::Copy, Newest::Move, Newest::Watch] {
        for (event, outcomes) in TABLE {
            for (before, wanted) in ROWS.into_iter().zip(outcomes) {
                one(before, event, wanted, newest)
                    .map_err(|why| format!("{before:?} x {event:?}, {newest:?}: {why}"))?;
            }
        }
    }
    Ok(())
}

fn one(before: Before, event: Event, wanted: Kind, newest: Newest) -> Result<(), String> {
    let mut setting = Setting::of(1);
    setting.style = Style { call: 1, swap: 0, load: 0, hold: 0 };
    setting.forks_announced = true;
    setting.is_threaded = true;
    setting.newest = newest;
    setting.config.move_threads = 1;
    setting.config.cooling_windows = 0;
    setting.config.move_mib_s = 0;
    setting.config.tiers[0].place.capacity_bytes = 256 * PAGE;
    setting.config.tiers[1].place.capacity_bytes = 256 * PAGE;
    setting.config.tiers[1].medium = terrace_core::tier::MediumKind::File;
    play_in(&setting, move |rt, queue| {
        let script = Script { rt, queue, region: rt.table.get_or_create(START).expect("a region") };
        script.play(before, event, wanted)
    })
}

/// Plays a script in a world of its own.
fn play_in(
    setting: &Setting,
    script: impl FnOnce(&'static Runtime, Arc<Queue>) -> Result<(), String> + 'static,
) -> Result<(), String> {
    let world = World::build(setting);
    let (rt, queue) = (world.rt, world.queue.clone());
    let result: Rc<RefCell<Result<(), String>>> = Rc::new(RefCell::new(Ok(())));
    let to = result.clone();
    schedule::spawn("script", false, move || *to.borrow_mut() = script(rt, queue));
    let stop = schedule::run(100_000);
    let failure = schedule::failure();
    let waiting = schedule::waiting();
    world.end();
    kernel::begin(false, Newest::Move);
    match (stop, failure) {
        (_, Some(why)) => Err(why),
        (Stop::Finished, None) => result.borrow().clone(),
        (stop, None) => Err(format!("{stop:?}, {waiting}")),
    }
}

/// Samples that stay where they are: one that is touched is a hit, one that is not is none, and one
/// whose content was dropped is no sample.
fn watched_pages_say_whether_they_were_touched() -> Result<(), String> {
    const PAGES: u64 = 3;
    let mut setting = Setting::of(1);
    setting.style = Style { call: 1, swap: 0, load: 0, hold: 0 };
    setting.faults = kernel::Faults::default();
    setting.newest = Newest::Watch;
    play_in(&setting, |rt, _| {
        let region = rt.table.get_or_create(START).expect("a region");
        kernel::mmap(MAIN, START, PAGES * PAGE);
        let page = |n: u64| START + n * PAGE;
        for n in 0..PAGES {
            kernel::access(MAIN, page(n), true, |p| p[0] = 1).map_err(|e| format!("{e:?}"))?;
        }
        let pages = 0..PAGES as usize;
        region.make_words(pages.clone());
        if !rt.doorbell.call(move |pager| pager.register(region, pages.clone())) {
            return Err("not registered".into());
        }
        let count =
            || (region.samples.load(Ordering::Relaxed), region.hits.load(Ordering::Relaxed));
        let begin = || Watched::begin(rt, Sampling::new(region, 255, 1, None));
        let watched = begin();
        if count() != (PAGES as u8, 0) {
            return Err(format!("watches {:?} of {PAGES}", count()));
        }
        let _ = kernel::access(MAIN, page(1), false, |_| ());
        kernel::dontneed(MAIN, page(2), PAGE);
        watched.end(rt);
        match count() {
            (2, 1) => Ok(()),
            other => Err(format!("{other:?} instead of one hit of two samples")),
        }
    })
}

/// No page is moved out towards a tier whose medium takes nothing: not one word changes, and what
/// would have been refused is counted.
fn a_tier_that_takes_nothing_has_nothing_moved() -> Result<(), String> {
    const PAGES: u64 = 3;
    let mut setting = Setting::of(1);
    setting.style = Style { call: 1, swap: 0, load: 0, hold: 0 };
    setting.faults = kernel::Faults::default();
    setting.config.cooling_windows = 0;
    setting.config.torture_seed = 0;
    setting.config.tiers[SLOW.index() - 1].place.path = media::CLOSED.into();
    play_in(&setting, |rt, queue| {
        let region = rt.table.get_or_create(START).expect("a region");
        kernel::mmap(MAIN, START, PAGES * PAGE);
        for n in 0..PAGES {
            let at = START + n * PAGE;
            kernel::access(MAIN, at, true, |p| p[0] = 1).map_err(|e| format!("{e:?}"))?;
        }
        let pages = 0..PAGES as usize;
        region.make_words(pages.clone());
        if !rt.doorbell.call(move |pager| pager.register(region, pages.clone())) {
            return Err("not registered".into());
        }
        let words = || (0..PAGES as usize).map(|i| region.word(i)).collect::<Vec<_>>();
        let before = words();
        queue.replace([(region, SLOW)]);
        until("carried out", || queue.is_idle())?;
        let counted = rt.stats.tiers[SLOW.index()].refused[1].load(Ordering::Relaxed);
        match words() == before {
            true if counted == PAGES => Ok(()),
            true => Err(format!("{counted} of {PAGES} pages were counted as refused")),
            false => Err(format!("moved out and back: {:?}", words())),
        }
    })
}

/// Where a runtime comes up in the middle of a fork, that fork has not stopped its movers.
fn forks_older_than_the_runtime() -> Result<(), String> {
    let mut setting = Setting::of(1);
    setting.forks_announced = false;
    play_in(&setting, |rt, queue| {
        let has_runtime = |it: bool| agent::set_up(it.then(|| (rt, queue.clone())));
        let check = |what: &str, wanted: bool| match rt.is_paused() == wanted {
            true => Ok(()),
            false => Err(format!("paused {} times: {what}", rt.paused.load(Ordering::Relaxed))),
        };
        has_runtime(false);
        forks::prepare();
        has_runtime(true);
        forks::in_parent();
        check("a fork that began without it is over", false)?;
        has_runtime(false);
        forks::prepare();
        has_runtime(true);
        forks::prepare();
        forks::in_parent();
        check("another has begun and goes on", true)?;
        forks::in_parent();
        check("both are over", false)
    })
}

struct Script {
    rt: &'static Runtime,
    queue: Arc<Queue>,
    region: &'static Region,
}

fn spawn_read(page: u64, write: bool) -> usize {
    schedule::spawn("reader", false, move || {
        // Where the page is unmapped or moved meanwhile, the answer is a signal.
        let _ = kernel::access(MAIN, page, write, |p| {
            if write {
                p[9] = 9;
            }
        });
    })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    for _ in 0..2000 {
        if is_so() {
            return Ok(());
        }
        thread::sleep_us(20);
    }
    Err(format!("never {what}"))
}

impl Script {
    fn kind_at(&self, region: &Region) -> Kind {
        pairs::kind(self.rt, region.word(I))
    }

    fn kind(&self) -> Kind {
        self.kind_at(self.region)
    }

    fn play(&self, before: Before, event: Event, wanted: Kind) -> Result<(), String> {
        let rt = self.rt;
        kernel::mmap(MAIN, START, PAGES * PAGE);
        for n in 0..PAGES {
            let page = match before {
                B::Same => [7; PAGE as usize],
                _ => app::content(2),
            };
            let _ = kernel::access(MAIN, START + n * PAGE, true, |p| *p = page);
        }
        let region = self.region;
        if !rt.doorbell.call(move |pager| pager.register(region, 0..PAGES as usize)) {
            return Err("not registered".into());
        }
        self.bring_to(before)?;
        let is = self.kind();
        let mut dropper = None;
        let mut moved_to = None;
        match event {
            E::Read | E::Write | E::ReadTwice => {
                let count = if event == E::ReadTwice { 2 } else { 1 };
                let readers: Vec<usize> =
                    (0..count).map(|_| spawn_read(AT, event == E::Write)).collect();
                if before == B::Loading {
                    thread::sleep_us(300);
                    if self.kind() != Restoring {
                        return Err("somebody else brought it".into());
                    }
                    schedule::hold("loader", false);
                }
                readers.into_iter().for_each(schedule::join);
                until("home", || !matches!(self.kind(), Restoring))?;
            }
            E::Remove => {
                kernel::hold_drops(true);
                dropper = Some(schedule::spawn("dropper", false, || {
                    kernel::dontneed(MAIN, AT, PAGE);
                }));
                until("removed", || self.kind() == HomeZapped && !kernel::is_changing(0))?;
            }
            E::Unmap => kernel::munmap(MAIN, AT, PAGE),
            E::Remap => {
                let len = PAGES * PAGE;
                kernel::mremap(MAIN, START, len, ELSEWHERE, len, Leave::Nothing);
                rt.doorbell.call(|_| ());
                moved_to = rt.table.get(ELSEWHERE);
            }
            E::Fork => {
                let child = kernel::fork(MAIN);
                let reader = schedule::spawn("child", false, move || {
                    let _ = kernel::access(child, AT, false, |_| ());
                    kernel::exit(child);
                });
                if before == B::Loading {
                    // Its parent's thread waits for a loader; the child is served by the pager.
                    thread::sleep_us(500);
                }
                schedule::join(reader);
            }
            E::MoveOut => {
                self.stage();
            }
            E::ReturnStaged => {
                let (mut at, mut any) = (0, false);
                rt.doorbell
                    .call_in_parts(move |pager| pager.return_staged(region, &mut at, &mut any));
            }
            E::Sample => self.sample(),
            E::Unsample => {
                let mut at = 0;
                let home = move |pager: &mut Pager| pager.return_samples(region, &mut at);
                rt.doorbell.call_in_parts(call_until(home));
            }
            E::Promote => {
                self.queue.replace([(region, TierId::DRAM)]);
                until("promoted", || self.queue.is_idle())?;
            }
            E::Unregister => {
                let done = rt.doorbell.call(move |pager| pager.unregister(region));
                if done != matches!(is, Home | HomeZapped) || done == region.is_registered(I) {
                    return Err(format!("unregistered: {done}"));
                }
            }
        }
        // An event was read when its thread goes on; a call behind it says that it was handled.
        rt.doorbell.call(|_| ());
        let now = self.kind_at(moved_to.unwrap_or(region));
        if now != wanted {
            return Err(format!("{now:?} instead of {wanted:?}"));
        }
        if moved_to.is_some() && (self.kind() != Home || region.is_registered(I)) {
            return Err("something is left at the old address".into());
        }
        if event == E::Unmap && region.is_registered(I) {
            return Err("still registered".into());
        }
        // Everything goes on, and every byte is right.
        schedule::hold("loader", false);
        kernel::hold_drops(false);
        if let Some(dropper) = dropper {
            schedule::join(dropper);
        }
        let start = if moved_to.is_some() { ELSEWHERE } else { START };
        for n in 0..PAGES {
            let _ = kernel::access(MAIN, start + n * PAGE, false, |_| ());
        }
        forks::at_exit();
        rt.paused.fetch_add(1, Ordering::AcqRel);
        forks::bring_all_home(rt);
        schedule::quietly(|| kernel::compare_all(MAIN))
    }

    fn bring_to(&self, before: Before) -> Result<(), String> {
        let (rt, region) = (self.rt, self.region);
        let wanted = match before {
            B::Home => Home,
            B::Zapping => {
                kernel::hold_drops(true);
                schedule::spawn("dropper", false, || kernel::dontneed(MAIN, AT, PAGE));
                until("zapping", || self.kind() == HomeZapped && !kernel::is_changing(0))?;
                HomeZapped
            }
            B::Zapped => {
                kernel::dontneed(MAIN, AT, PAGE);
                HomeZapped
            }
            B::Staged => {
                self.stage();
                Staged
            }
            B::Encoding => {
                self.stage();
                let w = region.word(I);
                let encoding = w.begin_encode().ok_or("not staged")?;
                region.replace(I, w, encoding);
                Encoding
            }
            B::Stored | B::StoredSlowly | B::Same | B::Loading => {
                let wanted = match before {
                    B::Stored => Stored,
                    B::Same => Same,
                    _ => StoredSlowly,
                };
                let tier = if before == B::Stored { FAST } else { SLOW };
                // A medium may refuse for a while.
                for _ in 0..20 {
                    self.queue.replace([(region, tier)]);
                    until("stored", || self.queue.is_idle())?;
                    if self.kind() == wanted {
                        break;
                    }
                    rt.window.fetch_add(1, Ordering::Relaxed);
                }
                if before == B::Loading {
                    schedule::hold("loader", true);
                    spawn_read(AT, false);
                    until("asked for", || self.kind() == Restoring)?;
                    Restoring
                } else {
                    wanted
                }
            }
            B::Sampled => {
                self.sample();
                Sampled
            }
        };
        if self.kind() == wanted {
            Ok(())
        } else {
            Err(format!("could not be brought to {wanted:?}: {:?}", self.kind()))
        }
    }

    /// As a mover does, but for the mover.
    fn stage(&self) {
        let (rt, region) = (self.rt, self.region);
        if region.slot.load(Ordering::Acquire) == 0 {
            let slot = memory::carve(REGION_BYTES).expect("memory");
            rt.uffd.register_staging(slot, REGION_BYTES).expect("registered");
            region.slot.store(slot, Ordering::Release);
        }
        let slot = region.slot.load(Ordering::Acquire);
        // A stop may be refused for a while.
        for _ in 0..20 {
            let mut going = Going::new(region, I..I + 1, slot, FAST, 0);
            match &rt.stopper {
                None => rt.doorbell.call_in_parts(move |pager| pager.move_out(&mut going)),
                Some(stopper) => standstill::move_out(rt, stopper, going, FAST),
            };
            if rt.stopper.is_none() || self.kind() != Home {
                break;
            }
        }
    }

    fn sample(&self) {
        let region = self.region;
        for seed in 0..64 {
            if self.kind() != Home {
                break;
            }
            let mut sampling = Sampling::new(region, 255, seed, None);
            if let Some(stopper) = &self.rt.stopper {
                standstill::take_samples(self.rt, stopper, vec![sampling]);
                continue;
            }
            let take = move |pager: &mut Pager| pager.take_samples(&mut sampling);
            self.rt.doorbell.call_in_parts(call_until(take));
        }
    }
}
