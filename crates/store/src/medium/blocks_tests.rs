//! The medium on a device against plain bytes, over devices that fail, and over a real file.

use super::*;
use crate::testing::Random;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};

/// A device in memory: fails on demand, and knows what was never written.
#[derive(Default)]
struct Fake {
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    errno: Mutex<Option<i32>>,
    /// Reads that fail before one succeeds, and why if it is not EIO.
    bad_reads: AtomicUsize,
    why_reads_fail: AtomicI32,
    /// A failing write leaves half of its bytes behind.
    torn: AtomicBool,
    writes: AtomicUsize,
    reads: AtomicUsize,
}

impl Fake {
    fn fail_writes(&self, errno: Option<i32>) {
        *lock(&self.errno) = errno;
    }
}

impl BlockDevice for &Fake {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && buf.len().is_multiple_of(4096) && !buf.is_empty());
        assert!((buf.as_ptr() as usize).is_multiple_of(4096), "direct I/O wants aligned memory");
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bad = self.bad_reads.load(Ordering::Relaxed);
        if bad > 0 {
            self.bad_reads.store(bad - 1, Ordering::Relaxed);
            let why = match self.why_reads_fail.load(Ordering::Relaxed) {
                0 => libc::EIO,
                why => why,
            };
            return Err(io::Error::from_raw_os_error(why));
        }
        for (n, block) in (offset / 4096..).zip(buf.chunks_mut(4096)) {
            block.copy_from_slice(lock(&self.blocks).get(&n).expect("read before it was written"));
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
        assert!((bytes.as_ptr() as usize).is_multiple_of(4096), "direct I/O wants aligned memory");
        let errno = *lock(&self.errno);
        if let Some(errno) = errno.filter(|_| !self.torn.load(Ordering::Relaxed)) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        for (n, block) in (offset / 4096..).zip(bytes.chunks(4096)) {
            let mut blocks = lock(&self.blocks);
            let place = blocks.entry(n).or_insert_with(|| vec![0; 4096]);
            let len = if errno.is_some() { 2048 } else { 4096 };
            place[..len].copy_from_slice(&block[..len]);
        }
        errno.map_or(Ok(()), |e| Err(io::Error::from_raw_os_error(e)))
    }

    fn punch(&self, offset: u64, len: u64) {
        for n in offset / 4096..(offset + len) / 4096 {
            lock(&self.blocks).remove(&n);
        }
    }
}

/// What a test program does.
#[derive(Debug)]
enum Op {
    Write {
        offset: u64,
        len: usize,
    },
    Read {
        offset: u64,
        len: usize,
    },
    Release {
        block: u64,
        blocks: u64,
    },
    WorkOff,
    Fetch {
        offset: u64,
        len: usize,
    },
    /// Writes fail from here on, for that reason, or work again.
    Writes(Option<i32>),
    /// The next reads fail, fewer times than are tried.
    BadReads(usize),
}

fn op(random: &mut Random, capacity: u64) -> Op {
    let longest = if random.below(9) == 0 { 4096 } else { 700 };
    let len = 1 + random.below(longest);
    let offset = random.below((capacity as usize) - len) as u64;
    match random.below(40) {
        0..=15 => Op::Write { offset, len },
        16..=31 => Op::Read { offset, len },
        32..=33 => {
            let block = random.below(capacity as usize / 4096) as u64;
            let blocks = 1 + random.below(4) as u64;
            Op::Release { block, blocks: blocks.min(capacity / 4096 - block) }
        }
        34..=36 => Op::WorkOff,
        37 => Op::Fetch { offset, len },
        38 => {
            let errno = [libc::ENOSPC, libc::EIO][random.below(2)];
            Op::Writes((random.below(3) == 0).then_some(errno))
        }
        _ => Op::BadReads(random.below(2)),
    }
}

/// Runs a program from a seed; the model is a byte or nothing for every byte of the medium.
fn run(seed: u64, steps: usize) {
    const CAPACITY: u64 = 64 * 4096;
    let fake: &'static Fake = Box::leak(Box::default());
    fake.torn.store(seed.is_multiple_of(2), Ordering::Relaxed);
    let medium = BlockMedium::with_open_blocks(fake, CAPACITY, 12).unwrap();
    let mut model: Vec<Option<u8>> = vec![None; CAPACITY as usize];
    let mut random = Random(seed);
    let mut refused = 0;
    for step in 0..steps {
        let op = op(&mut random, CAPACITY);
        match op {
            Op::Write { offset, len } => {
                let bytes: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
                let part = &mut model[offset as usize..offset as usize + len];
                match medium.write(offset, &bytes) {
                    Ok(()) => part.iter_mut().zip(&bytes).for_each(|(m, b)| *m = Some(*b)),
                    // The object is not stored: what the range holds is nobody's business.
                    Err(_) => {
                        refused += 1;
                        part.fill(None);
                    }
                }
            }
            Op::Read { offset, len } => {
                let mut back = vec![0; len];
                let in_memory = medium.try_read(offset, &mut back).unwrap();
                let reads = fake.reads.load(Ordering::Relaxed);
                let mut again = vec![0; len];
                medium.read(offset, &mut again).unwrap();
                if in_memory {
                    assert_eq!(fake.reads.load(Ordering::Relaxed), reads, "seed {seed}");
                    assert_eq!(back, again);
                }
                for (i, byte) in again.iter().enumerate() {
                    let want = model[offset as usize + i];
                    assert!(
                        want.is_none_or(|w| w == *byte),
                        "seed {seed}, step {step}: byte {i} of {op:?}: {byte}, not {want:?}"
                    );
                }
            }
            Op::Release { block, blocks } => {
                medium.release(block * 4096, blocks * 4096);
                let (from, to) = (block as usize * 4096, (block + blocks) as usize * 4096);
                model[from..to].fill(None);
            }
            Op::WorkOff => medium.work_off(),
            Op::Fetch { offset, len } => medium.fetch(offset, len).unwrap(),
            Op::Writes(errno) => {
                fake.fail_writes(errno);
                if errno.is_none() {
                    medium.end_rest();
                }
            }
            Op::BadReads(n) => fake.bad_reads.store(n, Ordering::Relaxed),
        }
        let dirty = lock(&medium.blocks).dirty();
        assert!(dirty <= 12, "{dirty} blocks are dirty");
    }
    // With writes that work again, nothing that was taken is lost.
    fake.fail_writes(None);
    medium.flush().unwrap();
    let mut back = vec![0; CAPACITY as usize];
    medium.read(0, &mut back).unwrap();
    assert!(back.iter().zip(&model).all(|(b, m)| m.is_none_or(|m| m == *b)), "seed {seed}");
    assert!(steps < 500 || refused > 0 || seed > 0, "no write was ever refused");
}

#[test]
fn any_program_reads_what_it_wrote_over_a_device_that_fails() {
    for seed in 0..200 {
        run(seed, 600);
    }
}

/// A medium with so much noise in it that writing out begins.
fn filled(fake: &'static Fake, blocks: u64) -> BlockMedium<&'static Fake> {
    let medium = BlockMedium::with_open_blocks(fake, 1 << 22, 64).unwrap();
    for n in 0..blocks {
        medium.write(n * 4096, &[n as u8; 4096]).unwrap();
        medium.work_off();
    }
    medium
}

#[test]
fn a_full_device_is_told_from_a_broken_one_and_both_rest() {
    for (errno, why) in [
        (libc::ENOSPC, MediumError::Full),
        (libc::EDQUOT, MediumError::Full),
        (libc::EIO, MediumError::Io),
    ] {
        let fake: &'static Fake = Box::leak(Box::default());
        let medium = filled(fake, 40);
        assert_eq!(medium.accepts(), Ok(()));
        fake.fail_writes(Some(errno));
        assert_eq!(medium.flush(), Err(why));
        assert_eq!(medium.accepts(), Err(why), "it rests");
        // Nothing is tried before the rest is over, and nothing is lost.
        let (writes, rest) =
            (fake.writes.load(Ordering::Relaxed), medium.rest_ms.load(Ordering::Relaxed));
        medium.work_off();
        assert_eq!((fake.writes.load(Ordering::Relaxed), rest), (writes, 2 * REST_MS));
        let mut back = [0; 4096];
        for n in 0..40 {
            medium.read(n * 4096, &mut back).unwrap();
            assert_eq!(back, [n as u8; 4096]);
        }
        std::thread::sleep(Duration::from_millis(REST_MS + 5));
        assert_eq!(medium.accepts(), Ok(()), "after the rest it is tried again");
        assert_eq!(medium.flush(), Err(why));
        assert_eq!(medium.rest_ms.load(Ordering::Relaxed), 4 * REST_MS);
        fake.fail_writes(None);
        assert_eq!(medium.flush(), Ok(()));
        assert_eq!((medium.accepts(), medium.rest_ms.load(Ordering::Relaxed)), (Ok(()), REST_MS));
    }
}

#[test]
fn when_every_open_block_is_dirty_a_write_is_refused() {
    let fake: &'static Fake = Box::leak(Box::default());
    fake.fail_writes(Some(libc::EIO));
    let medium = BlockMedium::with_open_blocks(fake, 1 << 22, 64).unwrap();
    for n in 0..64 {
        medium.write(n * 4096, &[n as u8; 100]).unwrap();
    }
    assert_eq!(medium.write(64 * 4096, &[1; 100]), Err(MediumError::Io));
    medium.write(3 * 4096 + 100, &[9; 100]).unwrap();
    let mut back = [0; 200];
    medium.read(3 * 4096, &mut back).unwrap();
    assert!(back[..100] == [3; 100] && back[100..] == [9; 100]);
}

#[test]
fn a_read_is_tried_again_and_then_is_an_error() {
    let fake: &'static Fake = Box::leak(Box::default());
    let medium = filled(fake, 4);
    medium.flush().unwrap();
    // Push the clean blocks out of memory.
    for n in 100..164 {
        medium.write(n * 4096, &[1; 4096]).unwrap();
    }
    let mut back = [0; 4096];
    assert_eq!(medium.try_read(0, &mut back), Ok(false));
    fake.bad_reads.store(READ_PAUSES_MS.len(), Ordering::Relaxed);
    assert_eq!(medium.read(4096, &mut back), Ok(()));
    assert_eq!(back, [1; 4096]);
    fake.bad_reads.store(READ_PAUSES_MS.len() + 1, Ordering::Relaxed);
    assert_eq!(medium.read(4096, &mut back), Err(MediumError::Io));
}

#[test]
fn a_read_waits_for_memory_however_long_that_takes() {
    for why in [libc::ENOMEM, libc::EFAULT] {
        let fake: &'static Fake = Box::leak(Box::default());
        let medium = filled(fake, 4);
        medium.flush().unwrap();
        for n in 100..164 {
            medium.write(n * 4096, &[1; 4096]).unwrap();
        }
        fake.why_reads_fail.store(why, Ordering::Relaxed);
        fake.bad_reads.store(50, Ordering::Relaxed);
        let mut back = [0; 4096];
        assert_eq!(medium.read(4096, &mut back), Ok(()));
        assert_eq!(back, [1; 4096]);
    }
}

#[test]
fn neighbours_go_out_together() {
    let fake: &'static Fake = Box::leak(Box::default());
    let medium = filled(fake, 32);
    medium.flush().unwrap();
    assert_eq!(fake.writes.load(Ordering::Relaxed), 2, "32 blocks in runs of 16");
}

#[test]
fn readers_and_writers_at_once() {
    const OBJECTS: u64 = 400;
    let fake: &'static Fake = Box::leak(Box::default());
    let medium = BlockMedium::with_open_blocks(fake, 1 << 22, 16).unwrap();
    let round = |n: u64| AtomicU64::new(n);
    // Each object has a writer of its own and says which content is surely there.
    let written: Vec<AtomicU64> = (0..OBJECTS).map(|_| round(0)).collect();
    let stop = AtomicBool::new(false);
    // Odd sizes: objects share blocks, and some lie in two.
    let place = |n: u64| n * 1500;
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..2u64)
            .map(|who| {
                let (medium, written) = (&medium, &written);
                threads.spawn(move || {
                    for step in 0..6000u64 {
                        let n = (step * 7919 % (OBJECTS / 2)) * 2 + who;
                        // Free for the time of the write, as an object is that is not yet stored.
                        let before = written[n as usize].swap(u64::MAX, Ordering::SeqCst);
                        let now = before + 1;
                        let bytes = [(n + now * 31) as u8; 1500];
                        // With so few open blocks all may be on their way out; then the other
                        // writer is at it.
                        while medium.write(place(n), &bytes).is_err() {
                            medium.work_off();
                            std::thread::yield_now();
                        }
                        written[n as usize].store(now, Ordering::SeqCst);
                        medium.work_off();
                    }
                })
            })
            .collect();
        for seed in 0..2 {
            let (medium, written, stop) = (&medium, &written, &stop);
            threads.spawn(move || {
                let mut random = Random(seed);
                let mut checked = 0;
                while !stop.load(Ordering::Relaxed) || checked < 100 {
                    let n = random.below(OBJECTS as usize) as u64;
                    let before = written[n as usize].load(Ordering::SeqCst);
                    let mut back = [0; 1500];
                    medium.read(place(n), &mut back).unwrap();
                    if before != u64::MAX && written[n as usize].load(Ordering::SeqCst) == before {
                        let want = if before == 0 { 0 } else { (n + before * 31) as u8 };
                        assert!(back.iter().all(|b| *b == want), "object {n} round {before}");
                        checked += 1;
                    }
                }
            });
        }
        // Readers end whatever became of the writers.
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
    });
}

// ---- a real file ---------------------------------------------------------------------------

fn folder() -> std::path::PathBuf {
    std::env::temp_dir()
}

#[test]
fn a_file_has_no_name_and_holds_no_plain_text() {
    let before: Vec<_> = std::fs::read_dir(folder()).unwrap().flatten().map(|e| e.path()).collect();
    let medium = FileMedium::temporary(&folder(), 64 << 20).unwrap();
    let secret = b"the quick brown fox knows the password of the database";
    let mut page = [0; 4096];
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = secret[at % secret.len()];
    }
    for n in 0..2000 {
        medium.write(n * 4096, &page).unwrap();
        medium.work_off();
    }
    medium.flush().unwrap();
    let fd = medium.device().as_raw_fd();
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    assert!(name.to_string_lossy().ends_with("(deleted)"), "{name:?}");
    let mine = |p: &std::path::PathBuf| p.to_string_lossy().contains(".terrace-");
    let now: Vec<_> = std::fs::read_dir(folder()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(!now.iter().any(|p| mine(p) && !before.contains(p)), "{now:?}");
    let on_disk = std::fs::read(format!("/proc/self/fd/{fd}")).unwrap();
    assert!(on_disk.len() >= 2000 * 4096);
    for part in [&secret[..8], b"password", b"database"] {
        let found = on_disk.windows(part.len()).position(|w| w == part);
        assert_eq!(found, None, "plain text on the device");
    }
    // Equal pages do not look equal.
    let blocks: std::collections::HashSet<&[u8]> = on_disk.chunks(4096).take(2000).collect();
    assert_eq!(blocks.len(), 2000);
    let mut back = [0; 4096];
    for n in (0..2000).rev() {
        medium.read(n * 4096, &mut back).unwrap();
        assert!(back == page);
    }
    assert!(medium.read_ns() > 0);
}

#[test]
fn released_blocks_leave_the_file() {
    let medium = FileMedium::temporary(&folder(), 64 << 20).unwrap();
    for n in 0..1000u64 {
        medium.write(n * 4096, &[n as u8; 4096]).unwrap();
        medium.work_off();
    }
    medium.flush().unwrap();
    let path = format!("/proc/self/fd/{}", medium.device().as_raw_fd());
    let blocks = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(&path).unwrap().blocks()
    };
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let before = blocks();
    assert!(before >= 8000, "1000 blocks are 8000 sectors, not {before}");
    medium.release(0, 900 * 4096);
    let after = blocks();
    assert!(after < before / 5, "{before} sectors before, {after} after");
    let mut back = [0; 4096];
    medium.read(950 * 4096, &mut back).unwrap();
    assert_eq!(back, [950u64 as u8; 4096]);
    // Released blocks are used again, under counts that go on.
    medium.write(5 * 4096, &[7; 4096]).unwrap();
    medium.flush().unwrap();
    assert_eq!(lock(&medium.blocks).count(5), 2);
    medium.read(5 * 4096, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let error = FileMedium::temporary(Path::new("/nowhere/at/all"), 1 << 20).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let error = FileMedium::temporary(Path::new("/proc/self/status"), 1 << 20).err().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
}
