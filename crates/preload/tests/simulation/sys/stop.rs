//! Stops the simulated application, and takes its pages: the real one's protocol, with the kernel's
//! part in `kernel/taking.rs`.
//!
//! The stopper is a thread of its own, as the real one is a process: it leaves when it is kept
//! waiting, whatever the others wait for. While it works the application stands still, and the
//! pager, loaders, children, devices and the kernel's own reclaim do not.

use crate::kernel;
use crate::schedule::{self, Key};
use crate::sys::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::PoisonError;

/// See the real one. Fewer here: regions of the simulated application have few pages.
pub const PAGES_MAX: usize = 12;

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pair {
    /// Address in the program.
    pub home: u64,
    /// Address of the slot.
    pub slot: u64,
}

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stood {
    /// For how long the threads stood still, nanoseconds.
    pub ns: u64,
    /// How many they were.
    pub threads: usize,
}

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStopped {
    /// The kernel refused.
    Refused(i32),
    /// Some thread did not stand still in time.
    TooLong,
    /// The last one failed just now.
    Resting,
}

mod phase {
    pub const STOPPING: u32 = 1;
    pub const STANDING: u32 = 2;
    pub const TAKING: u32 = 3;
    pub const GIVEN_UP: u32 = 4;
    pub const TAKEN: u32 = 5;
    pub const OVER: u32 = 6;
    pub const LEFT: u32 = 7;
    pub const FAILED: u32 = 8;
}

#[derive(Debug)]
struct Shared {
    phase: AtomicU32,
    is_over: AtomicBool,
    pairs: std::sync::Mutex<Vec<Pair>>,
    given_up: [(AtomicU64, AtomicU64); PAGES_MAX],
}

/// See the real one.
#[derive(Debug)]
pub struct Stopper {
    shared: &'static Shared,
    turn: Mutex<()>,
}

/// Looks for another phase, 50 us apart at most, before somebody gives up waiting.
const LOOKS: u32 = 400;

impl Stopper {
    /// See the real one.
    pub fn new() -> Result<Stopper, &'static str> {
        // One for each seed; a batch ends with its process.
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            phase: AtomicU32::new(phase::OVER),
            is_over: AtomicBool::new(true),
            pairs: std::sync::Mutex::default(),
            given_up: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; PAGES_MAX],
        }));
        schedule::spawn("stopper", true, move || loop {
            while shared.is_over.load(Ordering::Relaxed) {
                schedule::wait(shared.key());
            }
            shared.serve();
            schedule::stop_app(false);
            shared.is_over.store(true, Ordering::Relaxed);
            schedule::wake(shared.key());
        });
        Ok(Stopper { shared, turn: Mutex::new(()) })
    }

    /// See the real one.
    pub fn capacity(&self) -> usize {
        PAGES_MAX
    }

    /// See the real one.
    pub fn is_taking(&self) -> bool {
        let now = self.shared.phase.load(Ordering::Relaxed);
        matches!(now, phase::STANDING | phase::TAKING | phase::GIVEN_UP)
    }

    /// See the real one.
    pub fn expects(&self, start: u64, end: u64) -> bool {
        self.given_up(start, end).is_some()
    }

    /// See the real one.
    pub fn note_given_up(&self, start: u64, end: u64) {
        if let Some(range) = self.given_up(start, end) {
            range.store(end, Ordering::Relaxed);
        }
    }

    fn given_up(&self, start: u64, end: u64) -> Option<&AtomicU64> {
        let is_it = |(a, b): &&(AtomicU64, AtomicU64)| {
            a.load(Ordering::Relaxed) == start && end <= b.load(Ordering::Relaxed)
        };
        self.shared.given_up.iter().find(is_it).map(|(a, _)| a)
    }

    /// Whether a page of the application may be in two places: it is being taken, or a stopper left
    /// before what became of its pages was looked at.
    pub fn may_be_twice(&self) -> bool {
        !self.shared.is_over.load(Ordering::Relaxed) || kernel::was_left_early()
    }

    /// See the real one.
    pub fn take(
        &self,
        choose: impl FnOnce() -> Vec<Pair>,
        settle: impl FnOnce(),
    ) -> Result<Stood, NotStopped> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let s = self.shared;
        if schedule::random(|r| r.once_in(20)) {
            return Err(NotStopped::Refused(1));
        }
        for (start, end) in &s.given_up {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
        }
        s.phase.store(phase::STOPPING, Ordering::Relaxed);
        s.is_over.store(false, Ordering::Relaxed);
        schedule::wake(s.key());
        let began_ns = schedule::now_ns();
        while s.is_in(phase::STOPPING) {
            schedule::sleep_us(20);
        }
        let result = if s.is_in(phase::FAILED) {
            Err(NotStopped::TooLong)
        } else {
            let pairs = choose();
            let is_any = !pairs.is_empty();
            *s.pairs.lock().expect("no poison") = pairs;
            if is_any && s.hand_over(phase::STANDING, phase::TAKING) {
                while s.is_in(phase::TAKING) || s.is_in(phase::GIVEN_UP) {
                    schedule::sleep_us(20);
                }
            }
            settle();
            Ok(Stood { ns: schedule::now_ns() - began_ns, threads: 1 })
        };
        s.phase.store(phase::OVER, Ordering::Relaxed);
        schedule::wake(s.key());
        while !s.is_over.load(Ordering::Relaxed) {
            schedule::wait(s.key());
        }
        result
    }
}

impl Shared {
    fn key(&self) -> Key {
        Key::Lock(std::ptr::from_ref(self) as usize)
    }

    fn is_in(&self, phase: u32) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }

    fn hand_over(&self, from: u32, to: u32) -> bool {
        let relaxed = Ordering::Relaxed;
        self.phase.compare_exchange(from, to, relaxed, relaxed).is_ok()
    }

    /// Waits for another phase, mostly long enough.
    fn wait_while(&self, phase: u32) {
        let looks = if schedule::random(|r| r.once_in(30)) { 3 } else { LOOKS };
        for _ in 0..looks {
            if !self.is_in(phase) {
                return;
            }
            schedule::sleep_us(50);
        }
    }

    fn serve(&self) {
        schedule::stop_app(true);
        for n in 0.. {
            if schedule::app_stands_still() {
                break;
            }
            if n == LOOKS {
                self.hand_over(phase::STOPPING, phase::FAILED);
                return;
            }
            schedule::sleep_us(20);
        }
        schedule::trace(|| "stands still".to_string());
        self.hand_over(phase::STOPPING, phase::STANDING);
        self.wait_while(phase::STANDING);
        if self.hand_over(phase::STANDING, phase::LEFT) {
            kernel::leave_early();
        }
        if !self.is_in(phase::TAKING) {
            return;
        }
        self.work();
        self.wait_while(phase::TAKEN);
        if self.is_in(phase::TAKEN) {
            kernel::leave_early();
        }
        schedule::trace(|| "goes on".to_string());
    }

    fn work(&self) {
        let pairs = self.pairs.lock().expect("no poison").clone();
        let mut held: Vec<(Pair, kernel::Held)> = Vec::new();
        for pair in pairs {
            if kernel::is_takeable(pair.home) && kernel::populate(kernel::MAIN, pair.home).is_ok() {
                held.extend(kernel::hold(pair.home).map(|h| (pair, h)));
            }
        }
        self.hand_over(phase::TAKING, phase::GIVEN_UP);
        // In runs of a few.
        let mut rest = &held[..];
        for (start, end) in &self.given_up {
            let Some((first, _)) = rest.first() else { break };
            let beside = |(n, (p, _)): (usize, &(Pair, kernel::Held))| {
                p.home == first.home + n as u64 * kernel::PAGE
            };
            let len = rest.iter().enumerate().take_while(|&one| beside(one)).count();
            let (a, b) = (first.home, first.home + len as u64 * kernel::PAGE);
            start.store(a, Ordering::Relaxed);
            end.store(b, Ordering::Relaxed);
            kernel::give_up(a, b);
            rest = &rest[len..];
        }
        let homes: Vec<u64> = held.iter().map(|(pair, _)| pair.home).collect();
        for (pair, page) in held {
            kernel::disturb(&homes);
            kernel::read_out(page, pair.slot);
        }
        for &home in &homes {
            kernel::disturb(&homes);
            kernel::reclaim(home);
        }
        for &home in &homes {
            kernel::disturb(&homes);
            if kernel::is_present(home) {
                let _ = kernel::populate(kernel::MAIN, home);
            }
        }
        kernel::none_is_given_up(&homes);
        self.hand_over(phase::GIVEN_UP, phase::TAKEN);
    }
}
