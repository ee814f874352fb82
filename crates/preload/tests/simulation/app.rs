//! The simulated application, and the planner's side of its runtime.
//!
//! The application has a few *areas*, mappings of some pages each, mostly where two regions meet.
//! Its threads read and write anywhere at any time. What changes an area as a whole is done by one
//! thread at a time, as any correct program does it; others may touch the area meanwhile, and get
//! the signal that a real thread would get.

use crate::forks;
use crate::kernel::{self, Leave, Page, Pin, Prot, MAIN, OWN_BASE, PAGE};
use crate::pairs::{self, Event};
use crate::queue::Queue;
use crate::region::{page_index, Region};
use crate::runtime::Runtime;
use crate::schedule::{self, random};
use crate::sys::thread;
use crate::tracker::Tracker;
use crate::world::Setting;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use terrace_core::state::{REGION_BYTES, REGION_PAGES};
use terrace_core::tier::TierId;

/// Where areas are.
pub const BASE: u64 = 0x1_0000_0000;
/// Places for areas, two regions apart.
const SITES: u64 = 4;
/// Most pages of an area.
const PAGES_MAX: u64 = 28;
const FORKS_MAX: u32 = 3;

#[derive(Debug)]
struct Area {
    start: Cell<u64>,
    pages: Cell<u64>,
    /// A thread changes it as a whole.
    is_taken: Cell<bool>,
    /// No call is refused over it: the pager may still be handling its move (docs/limits.md).
    has_moved: Cell<bool>,
    /// Threads that drop pages of it, who do not mind each other.
    droppers: Cell<u32>,
}

/// The application.
pub struct App {
    rt: &'static Runtime,
    queue: Arc<Queue>,
    areas: Vec<Area>,
    /// Sites that somebody is about to map. What the kernel has unmapped is free at once, also
    /// while whoever did it waits for the event to be read.
    sites: RefCell<Vec<u64>>,
    forks: Cell<u32>,
    is_over: Cell<bool>,
    threads: usize,
    steps: u64,
    faults: kernel::Faults,
    keeps_copies: bool,
    window_step: u32,
    has_one_tier: bool,
    has_move: bool,
    /// A region is being registered, or a call refused: what comes of both at once is not known.
    is_registering: Cell<bool>,
    is_refused: Cell<bool>,
    children: RefCell<Vec<usize>>,
}

fn below(n: u64) -> u64 {
    random(|r| r.below(n))
}

fn once_in(n: u64) -> bool {
    random(|r| r.once_in(n))
}

/// What a page may be filled with: 0 one word repeated, 1 what no codec shrinks, else the rest.
pub fn content(kind: u64) -> Page {
    let mut page = [0; PAGE as usize];
    match kind {
        // One word repeated; zeros among them.
        0 => {
            let word = (below(3) as u32 * 0x0101_0101).to_le_bytes();
            page.as_chunks_mut::<4>().0.iter_mut().for_each(|w| *w = word);
        }
        // Incompressible.
        1 => {
            for w in page.as_chunks_mut::<8>().0 {
                *w = random(|r| r.next()).to_le_bytes();
            }
        }
        _ => {
            let word = random(|r| r.next()).to_le_bytes();
            page[..2048].as_chunks_mut::<8>().0.iter_mut().for_each(|w| *w = word);
        }
    }
    page
}

fn read(space: usize, page: u64) -> bool {
    kernel::access(space, page, false, |_| ()).is_ok()
}

fn write(space: usize, page: u64) -> bool {
    let (at, bytes) = (below(PAGE / 8) as usize * 8, random(|r| r.next()).to_le_bytes());
    kernel::access(space, page, true, |p| p[at..at + 8].copy_from_slice(&bytes)).is_ok()
}

fn fill(space: usize, page: u64) -> bool {
    let new = content(below(5));
    kernel::access(space, page, true, |p| *p = new).is_ok()
}

impl App {
    /// An application with its areas mapped.
    pub fn new(rt: &'static Runtime, queue: Arc<Queue>, setting: &Setting) -> Rc<App> {
        let app = App {
            rt,
            queue,
            areas: Vec::new(),
            sites: RefCell::default(),
            forks: Cell::new(0),
            is_over: Cell::new(false),
            threads: setting.app_threads,
            steps: setting.app_steps,
            faults: setting.faults,
            keeps_copies: setting.keeps_copies,
            window_step: setting.window_step,
            has_one_tier: setting.has_one_tier,
            has_move: setting.newest >= kernel::Newest::Move,
            is_registering: Cell::new(false),
            is_refused: Cell::new(false),
            children: RefCell::default(),
        };
        let mut app = app;
        for _ in 0..2 {
            let (start, pages) = (app.free_site(), 6 + below(12));
            kernel::mmap(MAIN, start, pages * PAGE);
            app.give_up_site(start);
            for n in (0..pages).filter(|_| !once_in(6)) {
                fill(MAIN, start + n * PAGE);
            }
            app.areas.push(Area {
                start: Cell::new(start),
                pages: Cell::new(pages),
                is_taken: Cell::new(false),
                has_moved: Cell::new(false),
                droppers: Cell::new(0),
            });
        }
        Rc::new(app)
    }

    /// A start with room for the largest area on both sides.
    fn free_site(&self) -> u64 {
        let mapped = kernel::mappings(MAIN);
        let mut sites = self.sites.borrow_mut();
        let n = loop {
            let n = below(SITES);
            let (start, end) = (BASE + 2 * n * REGION_BYTES, BASE + 2 * (n + 1) * REGION_BYTES);
            if !sites.contains(&n) && !mapped.iter().any(|&(a, b)| a < end && start < b) {
                break n;
            }
        };
        sites.push(n);
        // Mostly over the border of two regions.
        let before = if once_in(3) { PAGES_MAX + 2 } else { 1 + below(8) };
        BASE + (2 * n + 1) * REGION_BYTES - before * PAGE
    }

    fn give_up_site(&self, start: u64) {
        let n = (start - BASE) / (2 * REGION_BYTES);
        self.sites.borrow_mut().retain(|&s| s != n);
    }

    /// Lives: threads and the planner's side run until all are done.
    pub fn live(self: Rc<App>) {
        kernel::set_faults(self.faults);
        let app = self.clone();
        let planner = schedule::spawn("agent", false, move || app.plan());
        let threads: Vec<usize> = (0..self.threads)
            .map(|n| {
                let app = self.clone();
                let name = ["app-1", "app-2", "app-3"][n % 3];
                schedule::spawn(name, false, move || {
                    for _ in 0..app.steps {
                        app.step();
                    }
                })
            })
            .collect();
        for t in threads {
            schedule::join(t);
        }
        self.is_over.set(true);
        schedule::join(planner);
        loop {
            let Some(child) = self.children.borrow_mut().pop() else { break };
            schedule::join(child);
        }
    }

    fn some_page(&self) -> u64 {
        let area = &self.areas[below(self.areas.len() as u64) as usize];
        // Some pages are wanted by all threads.
        let pages = if once_in(2) { area.pages.get().min(2) } else { area.pages.get() };
        area.start.get() + below(pages) * PAGE
    }

    fn step(self: &Rc<App>) {
        match below(40) {
            0..=14 => {
                read(MAIN, self.some_page());
            }
            15..=22 => {
                write(MAIN, self.some_page());
            }
            23..=24 => {
                fill(MAIN, self.some_page());
            }
            // A scan.
            25..=26 => {
                let start = self.some_page();
                for n in 0..4 + below(8) {
                    read(MAIN, start + n * PAGE);
                }
            }
            27 => thread::sleep_us(1 + below(400)),
            28..=29 => {
                if let Some(pin) = kernel::pin(MAIN, self.some_page()) {
                    thread::sleep_us(1 + below(300));
                    Pin::write_and_release(
                        pin,
                        below(512) as usize * 8,
                        below(1 << 62).to_le_bytes(),
                    );
                }
            }
            30 => self.fork(MAIN, 0),
            31..=33 => self.drop_pages(),
            n => {
                let area = &self.areas[below(self.areas.len() as u64) as usize];
                if !area.is_taken.replace(true) {
                    self.change(area, n - 31);
                    area.is_taken.set(false);
                }
            }
        }
    }

    /// Drops pages of an area, often those that another thread is dropping as well, and writes to
    /// them at once, as an allocator does with what it was given back.
    fn drop_pages(&self) {
        let area = &self.areas[below(self.areas.len() as u64) as usize];
        if area.is_taken.get() && area.droppers.get() == 0 {
            return;
        }
        area.is_taken.set(true);
        area.droppers.set(area.droppers.get() + 1);
        let (start, len) = self.part(area);
        kernel::dontneed(MAIN, start, len);
        if once_in(2) {
            for page in (start..start + len).step_by(PAGE as usize).take(4) {
                write(MAIN, page);
            }
        }
        area.droppers.set(area.droppers.get() - 1);
        if area.droppers.get() == 0 {
            area.is_taken.set(false);
        }
    }

    /// Some pages of an area.
    fn part(&self, area: &Area) -> (u64, u64) {
        let pages = area.pages.get();
        // Often those that all threads want.
        let first = if once_in(3) { 0 } else { below(pages) };
        (area.start.get() + first * PAGE, (1 + below(pages - first)) * PAGE)
    }

    /// Changes an area as a whole.
    fn change(&self, area: &Area, what: u64) {
        let (start, pages) = (area.start.get(), area.pages.get());
        let (part, part_len) = self.part(area);
        match what {
            3 => {
                // Nobody else's while there is nothing.
                self.sites.borrow_mut().push((start - BASE) / (2 * REGION_BYTES));
                kernel::munmap(MAIN, part, part_len);
                kernel::mmap(MAIN, part, part_len);
                self.give_up_site(start);
            }
            // (Without a draw of its own, so that older seeds mean what they did.)
            4 if self.has_move
                && part_len / PAGE % 5 == 3
                && !area.has_moved.get()
                && !self.is_registering.get() =>
            {
                self.is_refused.set(true);
                kernel::mmap_refused(MAIN, start, pages * PAGE);
                self.is_refused.set(false);
            }
            4 => kernel::mmap_over(MAIN, part, part_len),
            5 | 6 => {
                // Only what is one mapping can be moved.
                kernel::mprotect(MAIN, start, pages * PAGE, Prot::Write);
                let mapped = kernel::mappings(MAIN);
                if !mapped.contains(&(start, start + pages * PAGE)) {
                    return;
                }
                let to = self.free_site();
                let leave = if once_in(4) { Leave::Mapping } else { Leave::Nothing };
                let new_pages = (pages + below(3)).min(PAGES_MAX);
                if kernel::mremap(MAIN, start, pages * PAGE, to, new_pages * PAGE, leave) {
                    area.start.set(to);
                    area.has_moved.set(true);
                    area.pages.set(new_pages);
                    if leave == Leave::Mapping {
                        read(MAIN, start);
                        write(MAIN, start);
                        kernel::munmap(MAIN, start, pages * PAGE);
                    }
                }
                self.give_up_site(to);
            }
            7 => {
                let new = if once_in(2) { pages + 1 + below(3) } else { 1 + below(pages) };
                if new <= PAGES_MAX && kernel::resize(MAIN, start, pages * PAGE, new * PAGE) {
                    area.pages.set(new);
                }
            }
            _ => {
                kernel::mprotect(
                    MAIN,
                    part,
                    part_len,
                    random(|r| r.pick(&[Prot::Read, Prot::None])),
                );
                thread::sleep_us(1 + below(300));
                kernel::mprotect(MAIN, part, part_len, Prot::Write);
            }
        }
    }

    // ---- children --------------------------------------------------------------------------

    fn fork(self: &Rc<App>, space: usize, depth: u32) {
        if self.forks.get() >= FORKS_MAX {
            return;
        }
        self.forks.set(self.forks.get() + 1);
        let is_ours = space == MAIN;
        if is_ours {
            forks::prepare();
        }
        // A child of clone(2) does not pass the handlers of fork(3): it neither closes the
        // runtime's descriptors nor waits.
        let waits = is_ours && self.rt.sees_forks() && !once_in(3);
        let inherited = if waits || !is_ours { Vec::new() } else { kernel::inherit() };
        let child = kernel::fork(space);
        let app = self.clone();
        let name = if depth == 0 { "child" } else { "grandchild" };
        let thread = schedule::spawn(name, false, move || {
            let _until_exit = inherited;
            if waits {
                app.wait_to_be_whole(child);
            }
            app.live_as_child(child, depth);
        });
        self.children.borrow_mut().push(thread);
        if is_ours {
            forks::in_parent();
        }
    }

    fn wait_to_be_whole(&self, child: usize) {
        let Some(sentinel) = forks::sentinel() else { return };
        let mut first = 0;
        let _ = kernel::access(child, sentinel, false, |p| first = p[0]);
        if first == 0 {
            schedule::fail(format!("process {child} was told that it is not whole"));
        }
    }

    fn live_as_child(self: &Rc<App>, child: usize, depth: u32) {
        for _ in 0..below(12) {
            let mapped = kernel::mappings(child);
            if mapped.is_empty() {
                break;
            }
            let (start, end) = mapped[below(mapped.len() as u64) as usize];
            let pages = (end - start) / PAGE;
            let page = start + below(pages) * PAGE;
            let some = 1 + below((end - page) / PAGE);
            match below(16) {
                0..=6 => {
                    read(child, page);
                }
                7..=10 => {
                    write(child, page);
                }
                11 => kernel::dontneed(child, page, some * PAGE),
                12 => kernel::munmap(child, page, some * PAGE),
                13 => {
                    // Below all that the parent ever maps.
                    let to = BASE - (1 + below(8)) * REGION_BYTES;
                    let free = !mapped.iter().any(|&(a, b)| a < to + PAGES_MAX * PAGE && b > to);
                    if free {
                        kernel::mremap(child, start, end - start, to, end - start, Leave::Nothing);
                    }
                }
                14 if depth == 0 => self.fork(child, depth + 1),
                _ => thread::sleep_us(200),
            }
        }
        for (start, end) in kernel::mappings(child) {
            for page in (start..end).step_by(PAGE as usize) {
                read(child, page);
            }
        }
        if let Err(why) = schedule::quietly(|| kernel::compare_all(child)) {
            schedule::fail(why);
        }
        kernel::exit(child);
    }

    // ---- the planner's side ----------------------------------------------------------------

    fn plan(&self) {
        let mut tracker = Tracker::new(self.rt).expect("a tracker");
        while !self.is_over.get() {
            match below(10) {
                0..=2 => self.register(),
                3..=6 => self.send_plan(),
                7..=8 => {
                    for r in self.rt.table.all() {
                        pairs::note_all(self.rt, r, Event::Unsample);
                    }
                    tracker.close();
                    let step = self.window_step;
                    let window = step + self.rt.window.fetch_add(step, Ordering::Relaxed);
                    // As the agent does, but that they are always wanted or never.
                    self.rt.copies.want(self.keeps_copies, 0);
                    self.rt.expire_copies();
                    for r in self.rt.table.all() {
                        r.resident.store(100, Ordering::Relaxed);
                        pairs::note_all(self.rt, r, Event::Sample);
                    }
                    tracker.open(window);
                }
                _ => self.unregister(),
            }
            thread::sleep_us(1 + below(random(|r| r.pick(&[20, 200, 2000]))));
        }
        tracker.close();
    }

    /// As the tracker does with a region that has settled.
    fn register(&self) {
        let area = &self.areas[below(self.areas.len() as u64) as usize];
        let (start, end) = (area.start.get(), area.start.get() + area.pages.get() * PAGE);
        let mut at = start;
        while at < end {
            let stop = ((at / REGION_BYTES + 1) * REGION_BYTES).min(end);
            let Some(region) = self.rt.table.get_or_create(at) else { return };
            let first = page_index(at);
            let pages = first..first + ((stop - at) / PAGE) as usize;
            if !pages.clone().all(|i| region.is_registered(i)) && !self.is_refused.get() {
                self.is_registering.set(true);
                self.rt.doorbell.call(move |pager| pager.register(region, pages.clone()));
                self.is_registering.set(false);
            }
            at = stop;
        }
    }

    fn send_plan(&self) {
        let tiers = self.rt.stores.config.tiers.len() as u64;
        let followed = self.rt.table.all().into_iter().filter(|r| r.is_followed());
        let jobs: Vec<(&'static Region, TierId)> =
            followed.map(|r| (r, self.tier_for(TierId(below(tiers + 1) as u8)))).collect();
        for (r, tier) in &jobs {
            r.tier.store(tier.0, Ordering::Relaxed);
            let event = if tier.0 == 0 { Event::Promote } else { Event::MoveOut };
            pairs::note_all(self.rt, r, event);
        }
        self.queue.replace(jobs);
    }

    /// Where a plan sends a region for which this tier was drawn. A copy is of use only in the tier
    /// that it is from, so that some seeds know but one.
    fn tier_for(&self, drawn: TierId) -> TierId {
        if self.has_one_tier && drawn != TierId::DRAM {
            TierId(1)
        } else {
            drawn
        }
    }

    fn unregister(&self) {
        let regions = self.rt.table.all();
        if regions.is_empty() {
            return;
        }
        let region = regions[below(regions.len() as u64) as usize];
        // A region that is given up as churned has little that is not home.
        if once_in(2) {
            self.queue.replace([(region, TierId::DRAM)]);
            let mut at = 0;
            self.rt
                .doorbell
                .call_in_parts(move |pager| pager.return_samples(region, &mut at).then_some(()));
            thread::sleep_us(below(300));
        }
        pairs::note_all(self.rt, region, Event::Unregister);
        self.rt.doorbell.call(move |pager| pager.unregister(region));
        if once_in(3) {
            self.register();
        }
    }
}

const _: () = assert!(BASE + 2 * SITES * REGION_BYTES < OWN_BASE && REGION_PAGES == 512);
