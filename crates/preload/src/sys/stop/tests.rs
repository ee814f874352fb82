//! The real kernel and real threads: those of the test program.

use super::*;
use std::sync::atomic::AtomicBool;

const PAGES: usize = 16;

struct Mapping(u64);

impl Mapping {
    fn new(pages: usize) -> Mapping {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), pages * 4096, rw, kind, -1, 0) };
        assert_ne!(p, libc::MAP_FAILED);
        // SAFETY: advice on it.
        unsafe { libc::madvise(p, pages * 4096, libc::MADV_NOHUGEPAGE) };
        Mapping(p as u64)
    }

    fn page(&self, i: usize) -> u64 {
        self.0 + (i * PAGE_BYTES) as u64
    }

    fn word(&self, i: usize) -> &'static AtomicU64 {
        // SAFETY: in the mapping, which tests leave mapped.
        unsafe { &*(self.page(i) as *const AtomicU64) }
    }
}

/// A stopper of a process of its own with some threads: other tests must not be stopped by this
/// one's mistakes, and fork children that would count as its own.
pub(super) fn in_a_process_of_its_own(test: impl FnOnce()) {
    let _alone = crate::sys::CHILDREN_IN_TESTS.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: the child runs the test on its only thread and ends without returning. Its exit
    // status says how it went; a lock that another test held at the fork would hang it, and the
    // alarm ends that.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
            libc::_exit(i32::from(done.is_err()));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        assert_eq!(status, 0, "the test failed in its process");
    }
}

/// The kernel notes fresh pages in lists of each CPU's own first, and does not drop those in
/// another CPU's, which may lie there for as long as that one makes few pages.
fn stay_on_one_cpu() {
    // SAFETY: cpu_set_t is plain data; the calls take this thread and one CPU.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut cpus);
        assert_eq!(libc::sched_setaffinity(0, std::mem::size_of_val(&cpus), &cpus), 0);
    }
}

pub(super) fn stopper() -> Stopper {
    memory::reserve().expect("memory");
    thread::adopt();
    Stopper::new().expect("a stopper")
}

#[test]
fn what_can_be_taken_is_taken_and_the_rest_is_as_it_was() {
    in_a_process_of_its_own(|| {
        stay_on_one_cpu();
        let stopper = stopper();
        let (home, slot) = (Mapping::new(PAGES), memory::carve(REGION_BYTES).expect("memory"));
        for i in 0..PAGES - 1 {
            home.word(i).store(100 + i as u64, Ordering::Relaxed);
        }
        // The last is a hole. One is held by a pipe, one mapped by a child.
        let pipe = open_pipe().expect("a pipe");
        let iov = libc::iovec { iov_base: home.page(3) as *mut libc::c_void, iov_len: 4096 };
        // SAFETY: lends one page to a pipe.
        assert_eq!(unsafe { libc::vmsplice(pipe[1], &iov, 1, 0) }, 4096);
        let pairs: Vec<Pair> = (0..PAGES)
            .map(|i| Pair { home: home.page(i), slot: slot + (i * PAGE_BYTES) as u64 })
            .collect();
        let pagemap = proc::Pagemap::open().expect("pagemap");
        let there = |i: usize| pagemap.present(home.page(i)).expect("pagemap")[0] & 1 == 1;
        let is_done = (0..100).any(|_| {
            let mut settled: Vec<bool> = Vec::new();
            let look = || settled = (0..PAGES).map(there).collect();
            match stopper.take(|| pairs.clone(), look) {
                Ok(_) => assert!(settled[3] && !settled[PAGES - 1], "the held one, not the hole"),
                Err(_) => thread::sleep_us(10_000),
            }
            settled.iter().filter(|there| **there).count() == 1
        });
        assert!(is_done, "only the page that is held stays");
        let mut page = [0; PAGE_BYTES];
        for i in (0..PAGES - 1).filter(|&i| i != 3) {
            memory::read_page(slot + (i * PAGE_BYTES) as u64, &mut page);
            assert_eq!(u64::from_le_bytes(page[..8].try_into().unwrap()), 100 + i as u64);
            assert_eq!(home.word(i).load(Ordering::Relaxed), 0, "dropped");
        }
        assert_eq!(home.word(3).load(Ordering::Relaxed), 103);
    });
}

#[test]
fn threads_stand_still_while_pages_are_chosen_and_go_on_afterwards() {
    static TURNS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    static STOP: AtomicBool = AtomicBool::new(false);
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        let threads: Vec<_> = (0..4)
            .map(|n| {
                std::thread::spawn(move || {
                    while !STOP.load(Ordering::Relaxed) {
                        TURNS[n].fetch_add(1, Ordering::Relaxed);
                        if n % 2 == 0 {
                            std::thread::sleep(std::time::Duration::from_micros(50));
                        }
                    }
                })
            })
            .collect();
        let turns = || -> Vec<u64> { TURNS.iter().map(|t| t.load(Ordering::Relaxed)).collect() };
        let mut ns: Vec<u64> = Vec::new();
        for _ in 0..50 {
            let mut moved = false;
            let look = || {
                let before = turns();
                thread::sleep_us(500);
                moved = turns() != before;
                Vec::new()
            };
            match stopper.take(look, || ()) {
                Ok(stood) => {
                    assert_eq!(stood.threads, 4);
                    assert!(!moved, "a thread ran");
                    ns.push(stood.ns - 500_000);
                }
                // A machine without CPU time to give.
                Err(NotStopped::TooLong | NotStopped::Resting) => thread::sleep_us(10_000),
                Err(why) => panic!("{why:?}"),
            }
            let before = turns();
            let until = thread::now_ns() + 5_000_000_000;
            while turns().iter().zip(&before).any(|(a, b)| a == b) {
                assert!(thread::now_ns() < until, "a thread stands still for good");
                thread::sleep_us(100);
            }
        }
        assert!(ns.len() > 5, "{} stops", ns.len());
        ns.sort_unstable();
        println!("a stop of 4 threads: median {} us", ns[ns.len() / 2] / 1000);
        STOP.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

#[test]
fn a_signal_that_a_stopped_thread_was_about_to_take_is_not_lost() {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn count(_signal: libc::c_int) {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGUSR1, count as extern "C" fn(libc::c_int) as usize) };
        static STOP: AtomicBool = AtomicBool::new(false);
        let taker = std::thread::spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        use std::os::unix::thread::JoinHandleExt;
        let id = taker.as_pthread_t();
        let mut sent = 0u64;
        for _ in 0..300 {
            // SAFETY: the thread is there until it is joined.
            unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
            sent += 1;
            let _ = stopper.take(Vec::new, || ());
            let until = thread::now_ns() + 5_000_000_000;
            while TAKEN.load(Ordering::Relaxed) < sent && thread::now_ns() < until {
                std::thread::yield_now();
            }
            assert_eq!(TAKEN.load(Ordering::Relaxed), sent);
        }
        STOP.store(true, Ordering::Relaxed);
        taker.join().expect("no panic");
    });
}

#[test]
fn what_a_killed_stopper_left_in_its_pipe_is_not_taken_for_other_pages() {
    in_a_process_of_its_own(|| {
        stay_on_one_cpu();
        let stopper = stopper();
        let (home, slot) = (Mapping::new(PAGES), memory::carve(REGION_BYTES).expect("memory"));
        let left = Mapping::new(1);
        left.word(0).store(99, Ordering::Relaxed);
        for i in 0..PAGES {
            home.word(i).store(100 + i as u64, Ordering::Relaxed);
        }
        let pairs: Vec<Pair> = (0..PAGES)
            .map(|i| Pair { home: home.page(i), slot: slot + (i * PAGE_BYTES) as u64 })
            .collect();
        let pagemap = proc::Pagemap::open().expect("pagemap");
        let mut gone = 0u16;
        for _ in 0..100 {
            let iov = libc::iovec { iov_base: left.page(0) as *mut libc::c_void, iov_len: 4096 };
            // SAFETY: lends one page to the pipe, as a stopper does before it gives pages up.
            assert_eq!(unsafe { libc::vmsplice(stopper.shared.pipe[1], &iov, 1, 0) }, 4096);
            let look = || gone = !(pagemap.present(home.page(0)).expect("pagemap")[0] as u16);
            match stopper.take(|| pairs.clone(), look) {
                Ok(_) if gone != 0 => break,
                _ => thread::sleep_us(10_000),
            }
        }
        assert_ne!(gone, 0, "nothing was taken");
        let mut page = [0; PAGE_BYTES];
        for i in (0..PAGES).filter(|i| gone >> i & 1 == 1) {
            memory::read_page(slot + (i * PAGE_BYTES) as u64, &mut page);
            assert_eq!(u64::from_le_bytes(page[..8].try_into().unwrap()), 100 + i as u64);
        }
    });
}

#[test]
fn nobody_looks_what_became_of_pages_where_none_were_chosen() {
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        let is_done = (0..100).any(|_| {
            match stopper.take(Vec::new, || panic!("the pager would wait for the stop's end")) {
                Ok(_) => true,
                Err(_) => {
                    thread::sleep_us(10_000);
                    false
                }
            }
        });
        assert!(is_done, "no stop");
    });
}
