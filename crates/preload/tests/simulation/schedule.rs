//! Simulated threads: fibers on one thread of the machine, of which the seed chooses who goes on.
//!
//! A fiber gives up its turn at every call of the fake kernel, lock, queue and doorbell, and now
//! and then at the atomic operations on page words. Time is virtual: a switch takes a microsecond,
//! and sleepers are skipped to when nobody else can go on.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True once in `n` times; never for 0.
    pub fn once_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What a fiber waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A message on the userfaultfd of this number.
    Read(usize),
    /// To be woken from a fault.
    Fault(u64),
    /// For its event to be read.
    Event(u64),
    /// A lock or condition, by its address.
    Lock(usize),
    /// A fiber's end.
    End(usize),
    /// Nothing: it is over.
    Never,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Ready,
    Waiting(Key),
    Asleep(u64),
    Done,
}

type Fiber = Coroutine<(), (), (), DefaultStack>;

struct Thread {
    name: &'static str,
    /// Runs as long as the process; the others must come to an end.
    is_daemon: bool,
    state: State,
    fiber: Option<Fiber>,
    yielder: *const Yielder<(), ()>,
    /// Of the application: it can be stopped, outside of system calls.
    is_app: bool,
    /// System calls it is in that end before it can be stopped.
    calls: u32,
    /// Not chosen before this step, if somebody else can go on: a thread without a processor.
    held_until: u64,
}

/// How a seed lets threads take turns.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// A call of the kernel gives up the turn once in so many times.
    pub call: u64,
    /// A compare-and-swap does.
    pub swap: u64,
    /// Word loads between two switches, on average; 0 for never.
    pub load: u64,
    /// A switch holds somebody back once in so many times.
    pub hold: u64,
}

struct Schedule {
    threads: Vec<Thread>,
    random: Random,
    style: Style,
    step: u64,
    now_ns: u64,
    failure: Option<String>,
    verbose: bool,
    /// The application stands still, or is about to.
    is_stopped: bool,
}

const NOBODY: usize = usize::MAX;
/// Bytes of a fiber's stack.
const STACK_BYTES: usize = 256 << 10;

thread_local! {
    static SCHEDULE: RefCell<Schedule> = const { RefCell::new(Schedule {
        threads: Vec::new(),
        random: Random(0),
        style: Style { call: 1, swap: 1, load: 0, hold: 0 },
        step: 0,
        now_ns: 0,
        failure: None,
        verbose: false,
        is_stopped: false,
    }) };
    static CURRENT: Cell<usize> = const { Cell::new(NOBODY) };
    static LOADS_LEFT: Cell<u64> = const { Cell::new(0) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(f: impl FnOnce(&mut Schedule) -> R) -> R {
    SCHEDULE.with_borrow_mut(f)
}

/// Begins anew for a seed.
pub fn begin(seed: u64, style: Style, verbose: bool) {
    with(|s| {
        s.random = Random::new(seed);
        s.style = style;
        s.step = 0;
        s.now_ns = 1_000_000_000;
        s.failure = None;
        s.verbose = verbose;
        s.is_stopped = false;
    });
    LOADS_LEFT.set(1);
}

/// Ends all threads: their stacks are unwound.
pub fn end() {
    CURRENT.set(NOBODY);
    loop {
        let Some(mut thread) = with(|s| s.threads.pop()) else { break };
        if let Some(mut fiber) = thread.fiber.take() {
            fiber.force_unwind();
            STACKS.with_borrow_mut(|stacks| stacks.push(fiber.into_stack()));
        }
    }
}

/// Starts a thread.
pub fn spawn(name: &'static str, is_daemon: bool, f: impl FnOnce() + 'static) -> usize {
    let stack = STACKS.with_borrow_mut(Vec::pop);
    let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("a stack"));
    // What a fiber begins with must be small.
    let f: Box<dyn FnOnce()> = Box::new(f);
    let fiber = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        let me = CURRENT.get();
        with(|s| s.threads[me].yielder = yielder);
        f();
    });
    with(|s| {
        s.threads.push(Thread {
            name,
            is_daemon,
            state: State::Ready,
            fiber: Some(fiber),
            yielder: std::ptr::null(),
            is_app: name.starts_with("app-"),
            calls: 0,
            held_until: 0,
        });
        s.threads.len() - 1
    })
}

/// The thread that runs; `None` outside of all.
pub fn current() -> Option<usize> {
    Some(CURRENT.get()).filter(|&n| n != NOBODY)
}

/// Name of the thread that runs.
pub fn current_name() -> &'static str {
    current().map_or("-", |n| with(|s| s.threads[n].name))
}

/// Looks at the runtime's state without giving up the turn.
pub fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let me = CURRENT.replace(NOBODY);
    let loads = LOADS_LEFT.replace(u64::MAX);
    let result = f();
    CURRENT.set(me);
    LOADS_LEFT.set(loads);
    result
}

/// Random choice for the fake world, from the same stream.
pub fn random<R>(f: impl FnOnce(&mut Random) -> R) -> R {
    with(|s| f(&mut s.random))
}

/// Virtual time, nanoseconds.
pub fn now_ns() -> u64 {
    with(|s| {
        s.now_ns += 50;
        s.now_ns
    })
}

/// Whether to print what happens.
pub fn is_verbose() -> bool {
    with(|s| s.verbose)
}

/// Prints a line of the trace.
pub fn trace(line: impl FnOnce() -> String) {
    if is_verbose() {
        let (step, name) = (with(|s| s.step), current_name());
        println!("{step:6} {name:<10} {}", line());
    }
}

/// A violation: the run is over.
pub fn fail(why: String) -> ! {
    trace(|| format!("VIOLATION {why}"));
    with(|s| {
        if s.failure.is_none() {
            s.failure = Some(format!("step {}: {why}", s.step));
        }
    });
    loop {
        wait(Key::Never);
    }
}

/// Notes a violation found outside of the threads.
pub fn note_failure(why: String) {
    with(|s| {
        if s.failure.is_none() {
            s.failure = Some(why);
        }
    });
}

/// The violation, if there was one.
pub fn failure() -> Option<String> {
    with(|s| s.failure.clone())
}

/// Steps so far.
pub fn steps() -> u64 {
    with(|s| s.step)
}

fn suspend() {
    let me = CURRENT.get();
    if me == NOBODY || std::thread::panicking() {
        return;
    }
    let yielder = with(|s| s.threads[me].yielder);
    // SAFETY: the yielder lives as long as its fiber, which is the one that runs here.
    unsafe { (*yielder).suspend(()) };
}

/// A call of the kernel: others may go first.
pub fn call_point() {
    if current().is_some() && with(|s| s.random.once_in(s.style.call)) {
        suspend();
    }
}

/// A compare-and-swap on a page word: others may go first.
pub fn swap_point() {
    if current().is_some() && with(|s| s.random.once_in(s.style.swap)) {
        suspend();
    }
}

/// A load of a page word.
pub fn load_point() {
    let left = LOADS_LEFT.get();
    if left > 0 {
        LOADS_LEFT.set(left - 1);
        return;
    }
    LOADS_LEFT.set(with(|s| match s.style.load {
        0 => u64::MAX,
        mean => s.random.below(2 * mean),
    }));
    if current().is_some() {
        suspend();
    }
}

/// Waits until somebody calls [`wake`] with the key.
pub fn wait(key: Key) {
    let me = CURRENT.get();
    if me == NOBODY || std::thread::panicking() {
        return;
    }
    with(|s| s.threads[me].state = State::Waiting(key));
    suspend();
}

/// Lets those go on that wait for the key.
pub fn wake(key: Key) {
    with(|s| {
        for t in &mut s.threads {
            if t.state == State::Waiting(key) {
                t.state = State::Ready;
            }
        }
    });
}

/// Sleeps for at most so long; the seed chooses.
pub fn sleep_us(us: u64) {
    let me = CURRENT.get();
    if me == NOBODY || std::thread::panicking() {
        return;
    }
    with(|s| {
        let for_ns = (1 + s.random.below(us.max(1))) * 1000;
        s.threads[me].state = State::Asleep(s.now_ns + for_ns);
    });
    suspend();
}

/// Waits for a thread's end.
pub fn join(thread: usize) {
    while with(|s| s.threads[thread].state != State::Done) {
        wait(Key::End(thread));
    }
}

/// Whether a thread has ended.
pub fn is_done(thread: usize) -> bool {
    with(|s| s.threads[thread].state == State::Done)
}

/// Keeps threads of this name from being chosen, or lets them go on: for scripted tests.
pub fn hold(name: &str, on: bool) {
    with(|s| {
        for t in s.threads.iter_mut().filter(|t| t.name == name) {
            t.held_until = if on { u64::MAX } else { 0 };
        }
    });
}

/// Stops the application's threads, each at the next place outside of system calls where it gives
/// up its turn, or lets them go on.
pub fn stop_app(on: bool) {
    with(|s| s.is_stopped = on);
}

/// Whether no thread of the application is in a system call. Asked by another thread, so that none
/// of them runs.
pub fn app_stands_still() -> bool {
    with(|s| s.threads.iter().all(|t| !t.is_app || t.calls == 0 || t.state == State::Done))
}

/// A system call that ends before its thread can be stopped, from here on to the end of the value.
pub struct Inside(usize);

/// Notes that the thread that runs is in such a call.
pub fn enter_call() -> Inside {
    let me = CURRENT.get();
    if me != NOBODY {
        with(|s| s.threads[me].calls += 1);
    }
    Inside(me)
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0 != NOBODY && !std::thread::panicking() {
            with(|s| {
                if let Some(t) = s.threads.get_mut(self.0) {
                    t.calls -= 1;
                }
            });
        }
    }
}

/// Why [`run`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// All threads that should have ended have.
    Finished,
    /// Somebody reported a violation.
    Failed,
    /// Nobody can go on.
    Stuck,
    /// So many steps without an end.
    TooLong,
}

/// Lets threads take turns until all that are no daemons have ended, `steps_max` steps at most.
pub fn run(steps_max: u64) -> Stop {
    let limit = with(|s| s.step) + steps_max;
    let mut ready: Vec<usize> = Vec::new();
    loop {
        let chosen = with(|s| {
            if s.failure.is_some() {
                return Err(Stop::Failed);
            }
            if s.threads.iter().all(|t| t.is_daemon || t.state == State::Done) {
                return Err(Stop::Finished);
            }
            if s.step >= limit {
                return Err(Stop::TooLong);
            }
            s.step += 1;
            s.now_ns += 1000;
            pick(s, &mut ready).ok_or(Stop::Stuck)
        });
        let n = match chosen {
            Ok(n) => n,
            // A closed descriptor is noticed at the latest when nobody can go on.
            Err(Stop::Stuck) if crate::kernel::reap() => continue,
            Err(stop) => return stop,
        };
        let Some(mut fiber) = with(|s| s.threads[n].fiber.take()) else { return Stop::Stuck };
        CURRENT.set(n);
        let result = fiber.resume(());
        CURRENT.set(NOBODY);
        with(|s| {
            s.threads[n].fiber = Some(fiber);
            if let CoroutineResult::Return(()) = result {
                s.threads[n].state = State::Done;
            }
        });
        if let CoroutineResult::Return(()) = result {
            wake(Key::End(n));
        }
    }
}

fn pick(s: &mut Schedule, ready: &mut Vec<usize>) -> Option<usize> {
    for may_be_held in [false, true] {
        ready.clear();
        let mut earliest: Option<u64> = None;
        for (n, t) in s.threads.iter_mut().enumerate() {
            let is_stopped = s.is_stopped && t.is_app && t.calls == 0;
            if !may_be_held && t.held_until > s.step || t.held_until == u64::MAX || is_stopped {
                continue;
            }
            match t.state {
                State::Ready => ready.push(n),
                State::Asleep(until) if until <= s.now_ns => {
                    t.state = State::Ready;
                    ready.push(n);
                }
                State::Asleep(until) => earliest = Some(earliest.map_or(until, |e| e.min(until))),
                _ => {}
            }
        }
        if let (true, Some(until)) = (ready.is_empty(), earliest) {
            s.now_ns = until;
            for (n, t) in s.threads.iter_mut().enumerate() {
                let is_stopped = s.is_stopped && t.is_app && t.calls == 0;
                let is_held = t.held_until == u64::MAX || is_stopped;
                if t.state == State::Asleep(until) && !is_held {
                    t.state = State::Ready;
                    ready.push(n);
                }
            }
        }
        if !ready.is_empty() {
            let n = s.random.pick(ready);
            s.threads[n].state = State::Ready;
            if s.random.once_in(s.style.hold) {
                s.threads[n].held_until = s.step + s.random.below(300);
            }
            return Some(n);
        }
    }
    None
}

/// Who waits for what: for the report of a hang.
pub fn waiting() -> String {
    with(|s| {
        let threads = s.threads.iter().filter(|t| t.state != State::Done);
        threads.map(|t| format!("{}: {:?}", t.name, t.state)).collect::<Vec<_>>().join("; ")
    })
}
