//! The pager: the one thread that serves page faults.
//!
//! # Order
//!
//! The pager is the only reader of the application's userfaultfd and the only caller of ioctls
//! that fill the application's pages or take pages out of it. Both together make the order of
//! events exact. The kernel counts an address-space change (munmap, mremap, madvise, fork) from
//! its beginning until its event has been read, and refuses our ioctls on that descriptor in
//! between (`Failure::Changing`). So whenever a move out succeeds, every change before it has
//! been read, and - one thread - handled: no page of a mapping that replaced the one we knew can
//! be carried off. Staging is registered on the same descriptor for this reason alone, because a
//! move is refused by the descriptor of its *destination*.
//!
//! One gap remains: `madvise(MADV_DONTNEED)` drops the pages only *after* its event was read.
//! Pages named by such an event carry a mark (`PageWord::zap_pending`) until they are seen
//! missing, and marked pages are never moved.
//!
//! Others run code on this thread through [`doorbell`].
//!
//! # The fault path
//!
//! `fault` -> `restore` fits on a screen, allocates nothing, logs nothing, and takes one lock: that
//! of the tier's pool, which movers hold for the length of a memcpy (a sampled page takes that of
//! the slot lists instead). Forked children and changes of the address space may allocate, from
//! the runtime's own heap. A page on a medium that takes its time is not waited for: `loads` has
//! it fetched by another thread and goes on.

mod ahead;
pub mod child;
pub mod doorbell;
mod events;
mod heirs;
mod loads;
pub mod moves;
mod order;
mod refused;
pub mod takes;
mod waking;

use crate::forks;
use crate::region::{page_index, Region};
use crate::runtime::Runtime;
use crate::stats;
use crate::sys::messages::EventBuffer;
use crate::sys::uffd::{Event, Failure, Uffd};
use crate::sys::{proc, thread};
use child::Children;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES};
use terrace_core::tier::TierId;
use terrace_store::{DecoderSet, LoadError};

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// How often the pager looks where the faulting thread runs. A look costs about 10 us.
const FOLLOW_EVERY_NS: u64 = 20_000_000;
/// How often the CPU is offered to a thread that has yet to run on, 1 to 2 us each, before the
/// pager sleeps.
const YIELDS_MAX: u8 = 20;

/// The pager thread's state.
pub struct Pager {
    /// The runtime it serves.
    pub rt: &'static Runtime,
    /// The application's userfaultfd.
    pub uffd: &'static Uffd,
    /// Messages read and not yet handled.
    queue: EventBuffer,
    /// Forked children that still miss pages.
    children: Children,
    /// Pages that loaders fetch.
    pending: loads::PendingLoads,
    decoders: DecoderSet,
    encoded: Box<[u8; PAGE_BYTES]>,
    page: Box<[u8; PAGE_BYTES]>,
    /// Recognises scans, and brings along what they will want.
    runs: ahead::Stored,
    fresh_runs: ahead::Fresh,
    batch: ahead::Batch,
    coldness: waking::Coldness,
    /// Where mappings were moved lately.
    arrivals: order::Arrivals,
    /// How often mappings were moved, for the words of their pages.
    carries: u16,
    /// What was registered and is not in the books yet, by start and end.
    registering: Option<(u64, u64)>,
    coverage: proc::Coverage,
    /// A mapping that is not registered may be kept from children because of us (`heirs.rs`).
    has_strayed: bool,
    /// Pages are about to be taken (`takes.rs`).
    attends: bool,
    /// A call waits for its next part (`doorbell.rs`), and how often faults went first.
    is_called: bool,
    faults_first: u8,
    /// When a thread was last given its page.
    woke_ns: u64,
    /// How often there was nothing to read in [`Self::drain`] since the last message.
    fruitless: u8,
    cpu: Option<usize>,
    followed_at_ns: u64,
}

/// What became of one attempt to serve a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    /// The thread goes on.
    Done,
    /// Look again: the page's word or the address space changed meanwhile.
    Again,
    /// The thread waits for a loader; it is counted when that is done.
    Later,
}

/// Where a page came from that somebody waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// From a tier: it was decoded.
    Tier(TierId),
    /// From a slot, where it lay as it was: as a sample, or on its way into a tier.
    Slot,
    /// From nowhere: fresh memory.
    Nowhere,
}

impl Source {
    /// Of a page that is not at home.
    fn word(w: PageWord) -> Source {
        match w.state() {
            PageState::Stored | PageState::Same => Source::Tier(w.tier()),
            _ => Source::Slot,
        }
    }
}

impl Pager {
    /// A pager that is ready to run. Everything it will ever allocate is allocated here.
    pub fn new(rt: &'static Runtime, uffd: &'static Uffd, decoders: DecoderSet) -> Pager {
        Pager {
            rt,
            uffd,
            queue: EventBuffer::new(),
            children: Children::default(),
            pending: loads::PendingLoads::default(),
            decoders,
            encoded: Box::new([0; PAGE_BYTES]),
            page: Box::new([0; PAGE_BYTES]),
            runs: ahead::Stored::default(),
            fresh_runs: ahead::Fresh::default(),
            batch: ahead::Batch::default(),
            coldness: waking::Coldness::default(),
            arrivals: order::Arrivals::default(),
            carries: 0,
            registering: None,
            coverage: proc::Coverage::open(),
            has_strayed: false,
            attends: false,
            is_called: false,
            faults_first: 0,
            woke_ns: 0,
            fruitless: 0,
            cpu: None,
            followed_at_ns: 0,
        }
    }

    /// Serves until the process ends.
    pub fn run(mut self) -> ! {
        // In short turns a thread that was just given its page does not take the pager's place.
        if !thread::take_short_turns(-10) {
            thread::take_short_turns(0);
        }
        thread::wake_on_time();
        // A message that the kernel cannot write down is lost, and whoever it is of waits for good.
        thread::hold_frame();
        loop {
            // Changes come first: once they were read, ioctls succeed again, and a fault or a call
            // that came in the same read would meet words that know nothing of them yet.
            while let Some(event) = self.queue.pop() {
                self.handle(event);
            }
            self.forget_arrivals();
            if self.attends && !self.is_called {
                self.attend();
                continue;
            }
            if self.is_called {
                self.work();
            } else if !self.arrivals.is_empty() {
                self.listen();
            } else {
                match self.children.is_empty() {
                    true => self.uffd.read(&mut self.queue),
                    false => self.uffd.read_making_room(&mut self.queue),
                };
                self.look();
            }
            if !self.children.is_empty() {
                self.feed_children_step();
            }
        }
    }

    fn handle(&mut self, event: Event) {
        self.fruitless = 0;
        match event {
            Event::Fault { address, wp: true, .. } if self.answer(address) => {}
            Event::Fault { address, write, tid, .. } => {
                let start_ns = thread::now_ns();
                let from = self.fault(address & !(PAGE_BYTES as u64 - 1), write);
                let end_ns = thread::now_ns();
                // The thread runs from the moment its page is there, if that moment is known.
                let woke_ns = if self.woke_ns > start_ns { self.woke_ns } else { end_ns };
                self.woke_ns = end_ns;
                if let Some(from) = from {
                    self.count_fault(from, woke_ns - start_ns);
                }
                if end_ns - self.followed_at_ns > FOLLOW_EVERY_NS {
                    self.followed_at_ns = end_ns;
                    self.follow(tid);
                }
            }
            other => self.change(other),
        }
    }

    /// Serves one missing page. Returns where it came from; `None` if it will come later.
    fn fault(&mut self, page: u64, write: bool) -> Option<Source> {
        let i = page_index(page);
        loop {
            // Looked up anew each time: a change handled meanwhile may have brought the region.
            let found = self.rt.table.get(page).map(|region| (region, region.word(i)));
            let served = match found {
                None => self.fill_zero(page, write, None),
                Some((region, w)) => match w.state() {
                    PageState::Stored if self.rt.waits(w) => self.ask(region, i, w),
                    PageState::Stored | PageState::Same | PageState::Encoding => {
                        self.restore(region, i, w)
                    }
                    PageState::Staged | PageState::Sampled => self.unstage(region, i, w),
                    PageState::Home => self.fill_zero(page, write, Some((region, i, w))),
                    // Somebody waits for it already. Filling the page wakes all.
                    PageState::Restoring if self.is_pending(region, i) => Served::Later,
                    // Only this thread writes Restoring, and never leaves it behind else.
                    PageState::Restoring => proc::die("terrace: page left half restored"),
                },
            };
            match served {
                Served::Again => {}
                Served::Later => return None,
                Served::Done => {
                    return Some(match found {
                        Some((_, w)) if w.state() != PageState::Home => Source::word(w),
                        _ => Source::Nowhere,
                    });
                }
            }
        }
    }

    /// Brings back a page from a pool, a pattern, or from under a mover that is encoding it.
    fn restore(&mut self, region: &Region, i: usize, w: PageWord) -> Served {
        self.feed_children(region, i);
        let Some(restoring) = w.begin_restore() else { return Served::Again };
        if !region.replace(i, w, restoring) {
            return Served::Again;
        }
        let dst = region.address(i);
        if w.state() != PageState::Encoding {
            if let Err(why) = self.try_decode(w) {
                unreadable(dst, why);
            }
            return self.fill(region, i, w, restoring);
        }
        // The mover reads the staged page and leaves it alone; we may read it too.
        match self.uffd.copy_from(dst, self.rt.slot_address(region, i, w)) {
            Ok(()) => {}
            Err(Failure::Present) => self.uffd.wake(dst, PAGE_BYTES as u64),
            Err(e) => {
                region.replace(i, restoring, w);
                return self.not_filled(dst, e);
            }
        }
        // It was not down yet, so that this says nothing of how soon it came back.
        region.replace(i, restoring, restoring.home(Some(self.rt.window_stamp())));
        region.faults.fetch_add(1, Ordering::Relaxed);
        self.runs.passed(dst);
        Served::Done
    }

    /// Puts the bytes a `Stored` or `Same` word names into `self.page`. An error if what is stored
    /// there is not a page of that word: the word is stale, or a medium failed or is corrupt.
    fn try_decode(&mut self, w: PageWord) -> Result<(), LoadError> {
        if w.state() == PageState::Same {
            for word in self.page.as_chunks_mut::<4>().0 {
                *word = w.payload().to_le_bytes();
            }
            return Ok(());
        }
        self.rt.load_page(w, &mut self.decoders, &mut self.encoded, &mut self.page)
    }

    /// Moves a page back from its staging or sample slot, without a copy.
    fn unstage(&mut self, region: &Region, i: usize, w: PageWord) -> Served {
        self.feed_children(region, i);
        let stamp = Some(self.rt.window_stamp());
        let brought = match self.bring_home(region, i, w, stamp) {
            Ok(brought) => brought,
            Err(Failure::Busy) => return Served::Again,
            Err(e) => return self.not_filled(region.address(i), e),
        };
        if !brought {
            // It was a hole when it was taken: there is nothing to bring, the page is fresh.
            return Served::Again;
        }
        if w.state() == PageState::Sampled {
            region.hits.fetch_add(1, Ordering::Relaxed);
            stats::add(&self.rt.stats.sample_faults, 1);
        } else {
            stats::add(&self.rt.stats.staged_faults, 1);
        }
        self.runs.passed(region.address(i));
        Served::Done
    }

    /// Moves a `Staged` or `Sampled` page from its slot to the application. `Ok(false)` if the
    /// slot is empty, which means that the page was a hole; `Busy` if a mover took it first.
    fn bring_home(
        &mut self,
        region: &Region,
        i: usize,
        w: PageWord,
        stamp: Option<u8>,
    ) -> Result<bool, Failure> {
        // A staged page is claimed first, so that no mover begins to read what is about to go. A
        // sampled one nobody else touches.
        let claimed = match w.state() {
            PageState::Staged => {
                let Some(claimed) = w.begin_restore() else { return Err(Failure::Busy) };
                if !region.replace(i, w, claimed) {
                    return Err(Failure::Busy);
                }
                claimed
            }
            _ => w,
        };
        let (dst, src) = (region.address(i), self.rt.slot_address(region, i, w));
        let mut emptied = true;
        let moved = match self.uffd.can_move() {
            true => self.uffd.move_page(dst, src, true),
            false => Err(Failure::NotMapped),
        };
        let moved = match moved {
            // The mapping's protection changed since; a copy does not mind.
            Err(Failure::NotMapped | Failure::Busy) => {
                emptied = false;
                self.uffd.copy_from(dst, src)
            }
            other => other,
        };
        let brought = match moved {
            Ok(()) => true,
            // The kernel says this also of a destination that an mremap has just moved away, and
            // then the slot still has the page. The event takes it along.
            Err(Failure::Missing) if self.is_in_slot(src) => {
                region.replace(i, claimed, w);
                return Err(Failure::NotMapped);
            }
            Err(Failure::Missing) => false,
            // Somebody filled the page; whoever it was came later than we took it.
            Err(Failure::Present) => {
                emptied = false;
                self.uffd.wake(dst, PAGE_BYTES as u64);
                true
            }
            Err(e) => {
                region.replace(i, claimed, w);
                return Err(e);
            }
        };
        region.replace(i, claimed, w.home(stamp.filter(|_| brought)));
        if w.state() == PageState::Sampled {
            self.rt.samples.give_back(w.payload(), emptied);
        }
        Ok(brought)
    }

    fn is_in_slot(&self, slot: u64) -> bool {
        self.present(slot)[0] & 1 == 1
    }

    /// A page nobody holds: fresh memory.
    fn fill_zero(
        &mut self,
        page: u64,
        write: bool,
        at: Option<(&Region, usize, PageWord)>,
    ) -> Served {
        // For a write, a copied page saves the second fault that the zero page would bring.
        let filled = if forks::is_sentinel(page) {
            self.uffd.copy_page(page, &forks::WHOLE)
        } else if write {
            self.uffd.copy_page(page, &ZEROS)
        } else {
            self.uffd.zero_page(page)
        };
        match filled {
            // What comes now is not waited for.
            Ok(()) => self.woke_ns = thread::now_ns(),
            Err(Failure::Present) => {
                self.uffd.wake(page, PAGE_BYTES as u64);
                return Served::Done;
            }
            Err(e) => return self.not_filled(page, e),
        }
        if let Some((region, i, w)) = at {
            region.zero_faults.fetch_add(1, Ordering::Relaxed);
            if w.zap_pending() {
                region.replace(i, w, w.zap_done());
            }
            if !forks::is_sentinel(page) {
                self.fill_fresh(region, i);
            }
        }
        stats::add(&self.rt.stats.zero_faults, 1);
        Served::Done
    }

    /// What to do when a page could not be filled.
    fn not_filled(&mut self, page: u64, why: Failure) -> Served {
        match why {
            Failure::Changing => self.drain(),
            // The mapping went away under the fault: its thread must look again, and will find
            // either our next answer or the signal that is due. The event is on its way.
            Failure::NotMapped | Failure::Missing | Failure::Gone => {
                self.uffd.wake(page, PAGE_BYTES as u64);
                return Served::Done;
            }
            // Memory limit: the kernel reclaims or kills; until then the thread waits, as it
            // would in the kernel. Only bytes must not be lost.
            Failure::NoMemory => thread::sleep_us(1000),
            // No error of userfaultfd's: a seccomp filter of the program's lies on this thread.
            Failure::Other(libc::EPERM | libc::EACCES | libc::ENOSYS) => proc::die(
                "terrace: this program keeps the runtime from making system calls (a seccomp \
                 filter for all threads?) while memory is in compressed tiers; ending it",
            ),
            _ => thread::sleep_us(50),
        }
        Served::Again
    }

    /// Reads and handles changes until an ioctl can succeed again. Faults read on the way wait in
    /// the queue.
    pub(crate) fn drain(&mut self) {
        self.look_and_read();
        let mut any = false;
        while let Some(event) = self.queue.pop_event() {
            self.change(event);
            any = true;
        }
        if any {
            return;
        }
        self.let_run_on();
    }

    /// Reads what there is into the queue, or gives the threads behind it time to run on.
    pub(super) fn listen(&mut self) {
        match self.look_and_read() {
            0 => self.let_run_on(),
            _ => self.fruitless = 0,
        }
    }

    /// All was read; a thread has yet to run on. As a rule it does so on another CPU within
    /// microseconds, less than a sleep takes. But it may need this very one.
    fn let_run_on(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
        if self.fruitless < YIELDS_MAX {
            thread::give_way();
        } else {
            thread::sleep_us(20);
        }
    }

    fn count_fault(&mut self, from: Source, service_ns: u64) {
        let overhead = stats::get(&self.rt.stats.fault_overhead_ns);
        stats::add(&self.rt.stats.stalled_ns, service_ns + overhead);
        stats::add(&self.rt.stats.waking_ns, overhead);
        match from {
            Source::Tier(tier) => {
                self.rt.stats.tiers[tier.index()].fault_ns.record(service_ns + overhead);
            }
            Source::Nowhere => stats::add(&self.rt.stats.fresh_ns, service_ns + overhead),
            Source::Slot => {}
        }
    }

    /// Runs on the CPU of the thread that faults: waking a thread on the same CPU costs a third of
    /// waking it on another.
    fn follow(&mut self, tid: u32) {
        let cpu = proc::last_cpu(tid);
        if cpu.is_some() && cpu != self.cpu {
            self.cpu = cpu;
            thread::pin_to(cpu.unwrap_or(0));
            self.rt.pager_cpu.store(cpu.unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// The one case in which going on would mean wrong bytes.
pub(crate) fn unreadable(address: u64, why: LoadError) -> ! {
    let why = match why {
        LoadError::MediumFailed => "could not be read from its medium, tried again and again",
        LoadError::NoSuchObject => "is not where it was put",
        LoadError::Corrupt | LoadError::WrongChecksum => "does not match its checksum",
    };
    let mut line = [0u8; 192];
    let mut out = std::io::Cursor::new(&mut line[..]);
    let _ = std::io::Write::write_fmt(
        &mut out,
        format_args!(
            "terrace: the stored copy of page {address:#x} {why}; \
             ending the program rather than handing it wrong bytes"
        ),
    );
    let len = out.position() as usize;
    proc::die(std::str::from_utf8(&line[..len]).unwrap_or("terrace: unreadable page"))
}
